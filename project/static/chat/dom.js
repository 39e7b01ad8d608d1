// Elements without markup strings: every text goes through textContent.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A little Markdown: paragraphs, fenced code, **bold** and `code`. Unclosed marks stay as they are while they stream. */
export function rich(text) {
  const fragment = document.createDocumentFragment();
  text.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    if (index % 2) fragment.append(el("pre", {}, el("code", {}, part.replace(/\n$/, ""))));
    else for (const block of part.split(/\n{2,}/)) if (block.trim()) fragment.append(paragraph(block.trim()));
  });
  return fragment;
}

function paragraph(block) {
  const p = el("p");
  for (const part of block.split(/(\*\*[^*\n]+\*\*|`[^`\n]+`)/)) {
    if (part.startsWith("**") && part.endsWith("**") && part.length > 4) p.append(el("strong", {}, part.slice(2, -2)));
    else if (part.startsWith("`") && part.endsWith("`") && part.length > 2) p.append(el("code", {}, part.slice(1, -1)));
    else if (part) p.append(part);
  }
  return p;
}

export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
