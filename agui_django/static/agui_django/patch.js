// JSON Patch (RFC 6902) on a copy. The server only sends patches that apply.

const clone = (value) => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));
const FORBIDDEN = new Set(["__proto__", "prototype", "constructor"]);

export function applyPatch(document, operations) {
  const root = { value: clone(document) };
  for (const operation of operations) apply(root, operation);
  return root.value;
}

function apply(root, { op, path, from, value }) {
  switch (op) {
    case "add":
      return put(root, path, clone(value), true);
    case "replace":
      return put(root, path, clone(value), false);
    case "remove":
      return take(root, path);
    case "move":
      return put(root, path, take(root, from), true);
    case "copy":
      return put(root, path, clone(read(root, from)), true);
    case "test":
      if (JSON.stringify(read(root, path)) !== JSON.stringify(value)) throw new Error(`test failed at ${path}`);
      return undefined;
    default:
      return undefined;
  }
}

function steps(path) {
  if (path === "") return [];
  const parts = path.slice(1).split("/").map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  for (const part of parts) if (FORBIDDEN.has(part)) throw new Error(`refused path ${path}`);
  return parts;
}

function parentOf(root, path) {
  const parts = steps(path);
  const last = parts.pop();
  let parent = root.value;
  for (const part of parts) parent = parent[part];
  return [parent, last];
}

function read(root, path) {
  return steps(path).reduce((value, part) => value[part], root.value);
}

function put(root, path, value, insert) {
  if (path === "") {
    root.value = value;
    return;
  }
  const [parent, last] = parentOf(root, path);
  if (!Array.isArray(parent)) parent[last] = value;
  else if (last === "-") parent.push(value);
  else if (insert) parent.splice(Number(last), 0, value);
  else parent[Number(last)] = value;
}

function take(root, path) {
  const [parent, last] = parentOf(root, path);
  if (Array.isArray(parent)) return parent.splice(Number(last), 1)[0];
  const value = parent[last];
  delete parent[last];
  return value;
}
