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
  if (node.tagName !== "A") return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

export function Formatted({ text }) {
  const place = useRef();
  useLayoutEffect(() => {
    place.current.replaceChildren(DOMPurify.sanitize(marked.parse(text), ALLOWED));
  }, [text]);
  return html`<div ref=${place} class="formatted"></div>`;
}
