// An answer as markdown. A model's own HTML is shown as text and its pictures as their names, so that
// nothing is loaded; what is left is sanitised all the same.
import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import { html, useLayoutEffect, useRef } from "./ui.js";

const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

const marked = new Marked({
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => escaped(text || href),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", "start", "align", "rel", "target"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  // What may be wider than the page scrolls, by keyboard too.
  if (node.tagName === "PRE" || node.tagName === "TABLE") node.setAttribute("tabindex", "0");
  if (node.tagName !== "A") return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

// Milliseconds between two looks at an answer that is being written, and the most characters of one.
const PAUSE = 250;
const LONGEST = 100_000;

export function Formatted({ text, busy }) {
  const place = useRef();
  const drawn = useRef(-Infinity);
  useLayoutEffect(() => {
    const draw = () => {
      place.current.replaceChildren(nodesOf(text));
      drawn.current = performance.now();
    };
    const wait = busy ? drawn.current + PAUSE - performance.now() : 0;
    if (wait <= 0) return draw();
    const timer = setTimeout(draw, wait);
    return () => clearTimeout(timer);
  }, [text, busy]);
  return html`<div ref=${place} class="formatted" dir="auto"></div>`;
}

function nodesOf(text) {
  if (text.length > LONGEST) return document.createTextNode(text);
  try {
    return DOMPurify.sanitize(marked.parse(text), ALLOWED);
  } catch {
    // Nested deeper than the library goes; it is text all the same.
    return document.createTextNode(text);
  }
}
