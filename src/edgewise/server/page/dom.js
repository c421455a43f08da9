// Nodes. Text is always set as text: nothing that a model or a server writes becomes markup.
export const byId = (id) => document.getElementById(id);

// Whether a key belongs to an input method (Japanese, Chinese, ...), which is still composing. Safari
// ends a composition before the Enter that confirms it, and leaves only the key's code to tell.
export const composes = (event) => event.isComposing || event.keyCode === 229;

// An element; `attributes` whose names begin with "on" are listeners, false ones are left out.
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== false && child !== ""));
  return node;
}

const keys = new WeakMap();

// Draws a node's children again if `key`, which says all that they show, has changed.
export function fill(node, key, children) {
  const text = JSON.stringify(key);
  if (keys.get(node) === text) return;
  keys.set(node, text);
  node.replaceChildren(...children().flat(2).filter((child) => child !== null && child !== false && child !== ""));
}
