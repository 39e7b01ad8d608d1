// What every page of ours has: keys, none of which acts while somebody types, and the browser's time zone as a choice.

const keys = document.getElementById("agui-keys");

const acts = {
  "/": () => document.getElementById("searchbar")?.focus(),
  j: () => document.querySelector("#agui-run a[rel=next]")?.click(),
  k: () => document.querySelector("#agui-run a[rel=prev]")?.click(),
  "?": () => keys?.showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
});

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
for (const button of document.querySelectorAll(".agui-browser-zone")) {
  button.value = button.title = zone;
  button.hidden = !zone;
  button.setAttribute("aria-pressed", String(button.dataset.zone === zone));
}

// A list's button asks the server for one more row; here it is added at once, and nothing is sent.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[name=verb][value^='add:']");
  const rows = button?.previousElementSibling;
  if (!rows) return;
  event.preventDefault();
  if (rows.children.length >= 60) return;
  const row = rows.lastElementChild.cloneNode(true);
  const input = row.firstElementChild;
  const number = rows.children.length;
  input.id = input.id.replace(/\d+$/, number);
  const label = rows.closest(".agui-field")?.querySelector("label")?.textContent.replace(/:$/, "") ?? "";
  input.setAttribute("aria-label", `${label} ${number + 1}`);
  rows.append(row);
  input.value = "";
  input.focus();
});

// A menu of choices closes when one clicks beside it, as menus do.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("#changelist-filter details[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
