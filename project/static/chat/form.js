// A form made from a JSON Schema: objects, booleans, enums, numbers and strings. Whatever else a schema says is asked
// for as raw JSON. The server checks the answer against the schema, whatever the page lets through.

import { el } from "./dom.js";

let counter = 0;

/** Returns {element, value}: value() gives the answer, undefined for nothing, and throws what the reader should fix. */
export function field(schema, { name = "", required = true } = {}) {
  const known = typeof schema === "object" && schema !== null ? schema : {};
  if (Array.isArray(known.enum)) return choice(known, name, required);
  const types = [known.type].flat().filter((type) => type !== "null");
  if (types.length === 1 && MAKERS[types[0]]) return MAKERS[types[0]](known, name, required);
  return raw(known, name, required);
}

const MAKERS = {
  object(schema, name, required) {
    if (!schema.properties) return raw(schema, name, required);
    const wanted = new Set(schema.required ?? []);
    const parts = Object.entries(schema.properties).map(([key, part]) => [
      key,
      field(part, { name: key, required: required && wanted.has(key) }),
    ]);
    const element = el(name ? "fieldset" : "div", { class: "fields" });
    if (name) element.append(el("legend", {}, schema.title ?? name));
    for (const [, part] of parts) element.append(part.element);
    return {
      element,
      value() {
        const entries = parts.map(([key, part]) => [key, part.value()]).filter(([, value]) => value !== undefined);
        // An optional object that nobody filled in is left out whole; an unticked box is not an answer then.
        const filled = required || entries.some(([, value]) => value !== false);
        return filled ? Object.fromEntries(entries) : undefined;
      },
    };
  },
  boolean(schema, name) {
    const input = el("input", { type: "checkbox", id: newId(), name, checked: schema.default === true });
    const element = el("div", { class: "field check" }, input, label(schema, name, input, true), hint(schema));
    return { element, value: () => input.checked };
  },
  number: (schema, name, required) => numeric(schema, name, required, schema.multipleOf ?? "any"),
  integer: (schema, name, required) => numeric(schema, name, required, 1),
  string(schema, name, required) {
    const long = (schema.maxLength ?? 0) > 100;
    const type = { date: "date", email: "email", uri: "url", time: "time" }[schema.format] ?? "text";
    const input = el(long ? "textarea" : "input", {
      id: newId(), name, required, minlength: schema.minLength, maxlength: schema.maxLength,
      ...(long ? { rows: 3 } : { type, pattern: schema.pattern }),
    });
    input.value = schema.default ?? "";
    return boxed(schema, name, required, input, () => (input.value === "" && !required ? undefined : input.value));
  },
};

function numeric(schema, name, required, step) {
  const input = el("input", {
    type: "number", id: newId(), name, required, step, min: schema.minimum, max: schema.maximum,
  });
  input.value = schema.default ?? "";
  return boxed(schema, name, required, input, () => (input.value === "" ? undefined : Number(input.value)));
}

function choice(schema, name, required) {
  const select = el("select", { id: newId(), name, required });
  if (!required || schema.default === undefined) select.append(el("option", { value: "" }, "Choose…"));
  schema.enum.forEach((value, index) => {
    select.append(el("option", { value: index, selected: value === schema.default }, String(value)));
  });
  return boxed(schema, name, required, select, () => (select.value === "" ? undefined : schema.enum[select.value]));
}

function raw(schema, name, required) {
  const input = el("textarea", { id: newId(), name, required, rows: 4, class: "code", placeholder: "JSON" });
  if (schema.default !== undefined) input.value = JSON.stringify(schema.default, null, 2);
  return boxed({ title: "Answer as JSON", ...schema }, name, required, input, () => {
    if (input.value.trim() === "") return undefined;
    try {
      return JSON.parse(input.value);
    } catch (error) {
      throw new Error(`${schema.title ?? (name || "The answer")} is not valid JSON: ${error.message}`);
    }
  });
}

function boxed(schema, name, required, input, value) {
  return { element: el("div", { class: "field" }, label(schema, name, input, required), input, hint(schema)), value };
}

function label(schema, name, input, required) {
  const text = schema.title ?? (name || "Answer");
  return el("label", { for: input.id }, text, required ? null : el("span", { class: "muted" }, " optional"));
}

const hint = (schema) => (schema.description ? el("p", { class: "hint" }, schema.description) : null);
const newId = () => `field-${(counter += 1)}`;
