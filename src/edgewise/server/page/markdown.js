// Markdown as nodes. It never makes text: `leaf(start, end)` returns the nodes of a piece of the
// source, so that whoever calls knows which tokens a piece is made of. Of links only those to the
// web stay; pictures are their names, HTML is text, and formulas stay as they are written.
import { el } from "./dom.js";

const DEEPEST = 8; // lists and quotes in each other
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const COLUMNS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*(\|[ \t]*)?$/;
const FORMULAS = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };
// A dollar sign may be money: one that closes a formula has no digit behind it.
const DOLLARS = /\$(?!\s)(?:[^$\\\n]|\\.)*?[^\s$\\]\$(?!\d)/y;
const DISPLAYED = /^ {0,3}(\\\[|\$\$)/;
const MARK = /\\[([]|\$\$?|\\[$\\`*_#+.|<>~-]|`+|\*\*|__|~~|[*_]|!?\[|https?:\/\/[^\s<>()[\]"'*]*[^\s<>()[\]"'*.,;:!?]/g;
const LINK = /!?\[([^[\]\n]*)\]\(\s{0,8}<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)?)>?(?:\s{1,8}"[^"\n]*")?\s{0,8}\)/y;
const TAGS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

export function markdown(text, leaf) {
  const lines = [];
  for (let start = 0; start <= text.length; ) {
    const end = text.indexOf("\n", start);
    lines.push({ start, end: end < 0 ? text.length : end });
    if (end < 0) break;
    start = end + 1;
  }
  return blocks(lines, 0);

  function said({ start, end }) {
    return text.slice(start, end);
  }

  function blocks(lines, depth) {
    const found = [];
    for (let at = 0; at < lines.length; ) {
      const [node, next] = block(lines, at, depth);
      if (node) found.push(node);
      at = next;
    }
    return found;
  }

  // The block that begins at a line (null for an empty line), and the line after it.
  function block(lines, at, depth) {
    const line = said(lines[at]);
    if (!line.trim()) return [null, at + 1];
    if (FENCE.test(line)) return code(lines, at, FENCE.exec(line)[1]);
    if (DISPLAYED.test(line)) return displayed(lines, at, DISPLAYED.exec(line)[1]);
    const heading = HEADING.exec(line);
    if (heading) return [el(`h${Math.min(6, heading[1].length + 3)}`, {}, inline(lines[at].start + heading[0].length, lines[at].end)), at + 1];
    if (RULE.test(line)) return [el("hr"), at + 1];
    if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
    if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
    if (line.includes("|") && at + 1 < lines.length && said(lines[at + 1]).includes("|") && COLUMNS.test(said(lines[at + 1]))) return table(lines, at);
    return paragraph(lines, at);
  }

  function code(lines, at, fence) {
    const closes = (line) => line.startsWith(fence) && !line.replaceAll(fence[0], "");
    let end = at + 1;
    while (end < lines.length && !closes(said(lines[end]).trim())) end += 1;
    const body = lines.slice(at + 1, end).map((line) => leaf(line.start, Math.min(line.end + 1, text.length)));
    return [el("pre", { tabindex: 0 }, el("code", {}, body)), end + 1];
  }

  // A formula on lines of its own, to the end of its paragraph where nothing closes it.
  function displayed(lines, at, mark) {
    const [line, close] = [said(lines[at]), FORMULAS[mark]];
    const closed = line.indexOf(close, line.indexOf(mark) + mark.length);
    // What stands behind it in its line is text.
    if (closed >= 0 && line.slice(closed + close.length).trim()) return paragraph(lines, at);
    let end = at + 1;
    for (let open = closed < 0; open && end < lines.length && said(lines[end]).trim(); end += 1) open = !said(lines[end]).includes(close);
    return [el("p", {}, lines.slice(at, end).map((line, place) => leaf(line.start, at + place < end - 1 ? line.end + 1 : line.end))), end];
  }

  function quote(lines, at, depth) {
    let end = at;
    while (end < lines.length && QUOTE.test(said(lines[end]))) end += 1;
    const inner = lines.slice(at, end).map((line) => ({ start: line.start + QUOTE.exec(said(line))[0].length, end: line.end }));
    return [el("blockquote", {}, blocks(inner, depth + 1)), end];
  }

  function list(lines, at, depth) {
    const [, indent, first] = ITEM.exec(said(lines[at]));
    const ordered = /\d/.test(first);
    const items = [];
    let next = at;
    while (next < lines.length) {
      const marker = ITEM.exec(said(lines[next]));
      if (!marker || marker[1].length > indent.length + 1 || /\d/.test(marker[2]) !== ordered) break;
      const width = marker[0].length;
      const inner = [{ start: lines[next].start + width, end: lines[next].end }];
      next += 1;
      // What is indented belongs to the item, and what goes on with its paragraph.
      for (; next < lines.length; next += 1) {
        const line = said(lines[next]);
        const inside = line.length - line.trimStart().length > marker[1].length + 1;
        if (!line.trim() ? !belongs(lines, next, marker[1].length) : !inside && (ITEM.test(line) || begins(line) || !said(inner.at(-1)).trim())) break;
        inner.push({ start: Math.min(lines[next].end, lines[next].start + (inside ? Math.min(width, line.length - line.trimStart().length) : 0)), end: lines[next].end });
      }
      while (next < lines.length && !said(lines[next]).trim() && ITEM.test(said(lines[next + 1] ?? lines[next]))) next += 1;
      const children = blocks(inner, depth + 1);
      items.push(el("li", {}, children.length === 1 && children[0].tagName === "P" ? [...children[0].childNodes] : children));
    }
    return [el(ordered ? "ol" : "ul", ordered ? { start: parseInt(first, 10) } : {}, items), next];
  }

  // Whether more of the item follows this empty line.
  function belongs(lines, at, indent) {
    const line = said(lines[at + 1] ?? { start: 0, end: 0 });
    return Boolean(line.trim()) && line.length - line.trimStart().length > indent + 1;
  }

  function begins(line) {
    return [FENCE, HEADING, QUOTE, RULE, DISPLAYED].some((one) => one.test(line));
  }

  function table(lines, at) {
    let end = at + 2;
    while (end < lines.length && said(lines[end]).includes("|")) end += 1;
    const row = (line, cell) => el("tr", {}, cells(line).map(({ start, end }) => el(cell, {}, inline(start, end))));
    const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
    return [el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, body))), end];
  }

  function cells({ start, end }) {
    const bars = [];
    for (let at = start; at < end; at += 1) if (text[at] === "|" && text[at - 1] !== "\\") bars.push(at);
    const edges = [start - 1, ...bars, end];
    const found = edges.slice(1).map((edge, place) => trimmed(edges[place] + 1, edge));
    // Bars at both ends enclose the row.
    return found.filter(({ start, end }, place) => start < end || (place > 0 && place < found.length - 1));
  }

  function trimmed(start, end) {
    while (start < end && /\s/.test(text[start])) start += 1;
    while (end > start && /\s/.test(text[end - 1])) end -= 1;
    return { start, end };
  }

  function paragraph(lines, at) {
    let end = at + 1;
    while (end < lines.length && said(lines[end]).trim() && !begins(said(lines[end])) && !ITEM.test(said(lines[end]))) end += 1;
    const parts = lines.slice(at, end).map(({ start, end: stop }, place) => {
      const own = trimmed(start, stop);
      return [inline(own.start, own.end), place < end - at - 1 ? leaf(stop, stop + 1) : []];
    });
    return [el("p", {}, parts.flat(2)), end];
  }

  // What stands in a line. A mark that nothing closes is text.
  function inline(start, end, depth = 0) {
    const nodes = [];
    const open = new Set(); // marks that nothing closes from here on, so nobody looks again
    let plain = start;
    const flush = (to) => to > plain && nodes.push(...leaf(plain, to));
    MARK.lastIndex = start;
    for (let found = MARK.exec(text); found && found.index < end; found = MARK.exec(text)) {
      const at = found.index;
      const part = depth < DEEPEST ? marked(at, found[0], end, depth, open) : null;
      if (part) {
        flush(at);
        nodes.push(...part.nodes);
        plain = part.end;
      }
      MARK.lastIndex = part ? part.end : at + found[0].length;
    }
    flush(end);
    return nodes;
  }

  // {nodes, end} of what a mark begins; null if it is text.
  function marked(at, mark, end, depth, open) {
    const inside = at + mark.length;
    if (inside > end) return null;
    if (mark === "$" || Object.hasOwn(FORMULAS, mark)) return formula(at, mark, end, open);
    if (mark[0] === "\\") return { nodes: leaf(at + 1, inside), end: inside };
    if (mark[0] === "h") return { nodes: [anchor(mark, leaf(at, Math.min(end, inside)))], end: Math.min(end, inside) };
    if (mark.endsWith("[")) return link(at, end, depth);
    if (open.has(mark)) return null;
    const close = mark[0] === "`" ? closing(mark, inside, end, true) : /\s|^$/.test(text[inside] ?? "") || (mark.length === 1 && /\w/.test(text[at - 1] ?? "")) ? 0 : closing(mark, inside, end, false);
    if (close < 0) open.add(mark);
    if (close <= inside) return null;
    if (mark[0] === "`") return { nodes: [el("code", {}, leaf(inside, close))], end: close + mark.length };
    return { nodes: [el(TAGS[mark], {}, inline(inside, close, depth + 1))], end: close + mark.length };
  }

  // As it is written, with its marks.
  function formula(at, mark, end, open) {
    let after = at;
    if (mark === "$") {
      DOLLARS.lastIndex = at;
      after = DOLLARS.test(text) ? DOLLARS.lastIndex : at;
    } else if (!open.has(mark)) {
      after = text.indexOf(FORMULAS[mark], at + 2) + 2;
      if (after < at + 2 || after > end) open.add(mark);
    }
    return after > at && after <= end ? { nodes: leaf(at, after), end: after } : null;
  }

  // Where a mark is closed; -1 if it is not.
  function closing(mark, from, end, code) {
    for (let at = text.indexOf(mark, from + 1); at >= 0 && at + mark.length <= end; at = text.indexOf(mark, at + mark.length)) {
      const beside = text[at + mark.length];
      if (code || (mark.length === 1 && beside === mark)) {
        if (beside !== mark[0] && text[at - 1] !== mark[0]) return at;
        if (code) continue;
        at += 1;
      } else if (!/\s/.test(text[at - 1]) && !(mark.length === 1 && /\w/.test(beside ?? ""))) return at;
    }
    return -1;
  }

  function link(at, end, depth) {
    LINK.lastIndex = at;
    const found = LINK.exec(text);
    if (!found || LINK.lastIndex > end) return null;
    const after = LINK.lastIndex; // reading the label moves it
    const label = at + found[0].indexOf("[") + 1;
    const nodes = inline(label, label + found[1].length, depth + 1);
    const web = text[at] !== "!" && /^(https?:\/\/|mailto:)/i.test(found[2]);
    return { nodes: web ? [anchor(found[2], nodes)] : nodes, end: after };
  }

  function anchor(href, nodes) {
    return el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, nodes);
  }
}
