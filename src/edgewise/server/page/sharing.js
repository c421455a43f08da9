// An answer for others: as text in the clipboard, or as a file that shows who wrote what.
import { byId, el } from "./dom.js";
import { state } from "./state.js";
import { bare } from "./wording.js";

// Copies text; says in a word how that went.
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return "copied";
    } catch {
      // Not allowed to this page; the older way may be.
    }
  }
  return copied(text) ? "copied" : "The browser does not let the page copy; select the text.";
}

// Where the page is not at a secure address.
function copied(text) {
  const before = document.activeElement;
  const field = el("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } finally {
    field.remove();
    before?.focus();
  }
}

// Saves a question and its answers as one file, which loads nothing and runs nothing.
export async function share(turn) {
  const style = await (await fetch("page.css")).text();
  const page = document.implementation.createHTMLDocument("An answer by Edgewise");
  const shown = byId(turn.id).cloneNode(true);
  const legend = byId("legend").cloneNode(true);
  for (const node of shown.querySelectorAll(".actions, .problem:empty, dl")) node.remove();
  for (const node of [shown, legend, ...shown.querySelectorAll("*")]) {
    for (const { name } of [...node.attributes]) if (!["class", "dir", "href", "rel", "lang"].includes(name)) node.removeAttribute(name);
  }
  for (const node of shown.querySelectorAll("details")) node.replaceWith(el("p", { class: "meters" }, ...node.firstChild.cloneNode(true).childNodes));
  legend.className = "legend";
  const { edge, cloud } = state.health ?? {};
  page.head.append(
    el("meta", { charset: "utf-8" }),
    el("meta", { "http-equiv": "Content-Security-Policy", content: "default-src 'none'; style-src 'unsafe-inline'" }),
    el("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    el("meta", { name: "color-scheme", content: "light dark" }),
  );
  page.body.className = "shared";
  page.body.append(el("h1", {}, "Edgewise"), legend, shown, el("p", { class: "note" }, `Edge model: ${edge ?? "not known"}. Cloud model: ${cloud ?? "none"}.`));
  // Written as text: this page may not make a style of its own.
  const html = page.documentElement.outerHTML.replace("</head>", () => `<style>${style}</style></head>`);
  const url = URL.createObjectURL(new Blob([`<!doctype html>\n${html}`], { type: "text/html" }));
  el("a", { href: url, download: `edgewise ${bare(turn.prompt).slice(0, 40).replace(/[^\p{L}\p{N}]+/gu, " ").trim()}.html` }).click();
  URL.revokeObjectURL(url);
  return "saved";
}
