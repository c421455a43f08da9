// A question and its answer as they are written. Whatever a model writes is set as text, never as markup.

/** An element; attributes whose names begin with "on" are listeners. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const shown = (text) => text.replaceAll("\n", "↵ ") || "∎";

export class AnswerView {
  /** @param {(id: number) => string} textOf what an id stands for @param {number} allowed the cloud share */
  constructor(question, textOf, allowed) {
    Object.assign(this, { textOf, allowed });
    this.text = el("p", { class: "text" });
    this.caption = el("p", { class: "caption" });
    this.problem = el("p", { class: "problem" });
    this.meters = el("p", { class: "meters" });
    this.answer = el("section", { class: "answer", "aria-label": "Answer", "aria-busy": "true" }, this.text, this.caption, this.problem, this.meters);
    this.node = el("article", { class: "turn" }, el("div", { class: "question" }, el("h2", {}, question)), this.answer);
    this.changes = [];
    this.plain = "";
    this.begun = performance.now();
    this.tokens = { edge: 0, cloud: 0 };
    this.failed = 0;
  }

  add(event) {
    if (event.type === "token") this.#token(event);
    else if (event.type === "consult") this.#consult(event);
    else this.#finish(event);
  }

  /** What stopped it, in a sentence. */
  fail(message) {
    this.problem.textContent = message;
    this.answer.setAttribute("aria-busy", "false");
  }

  #token({ id, text, source, reason, edge, index }) {
    this.plain += text;
    this.tokens[source] += 1;
    const cloud = source === "cloud";
    // It is greedy: the edge would have written its likeliest token.
    const changed = cloud && edge.length > 0 && edge[0].id !== id;
    const failed = ["timeout", "unavailable", "refused", "rejected", "protocol"].includes(reason);
    const node = el("span", { class: `token${cloud ? ` cloud ${changed ? "changed" : "confirmed"}` : failed ? " fallback" : ""}` });
    if (changed) {
      const before = this.textOf(edge[0].id);
      this.changes.push({ index, before, after: text });
      // Blanks stand outside, so that no line is struck that is not a word.
      const [, blank, word] = /^(\s*)(.*)$/s.exec(text);
      node.append(blank, el("mark", {}, el("ruby", {}, word || shown(word), el("rt", { "aria-hidden": "true" }, el("del", {}, shown(before.trim()))))));
    } else node.append(cloud ? el("mark", {}, text) : text);
    this.text.append(node);
    this.#measure();
  }

  #consult({ outcome, message }) {
    if (outcome === "answered") return;
    this.failed += 1;
    this.problem.textContent = `The cloud failed ${this.failed === 1 ? "once" : `${this.failed} times`} (${message}); the edge wrote instead.`;
  }

  #finish({ text, finishReason, cloudShare }) {
    this.plain += text;
    this.text.append(text);
    this.answer.setAttribute("aria-busy", "false");
    const { edge, cloud } = this.tokens;
    const changes = this.changes.map(({ before, after }) => `“${shown(after.trim())}” instead of “${shown(before.trim())}”`);
    const end = { length: " It ends at its longest.", stopped: " It was stopped." }[finishReason] ?? "";
    this.caption.textContent = cloud
      ? `The cloud wrote ${cloud} of ${edge + cloud} tokens${changes.length ? `: ${changes.join(", ")}` : ", all as the edge would have"}.${end}`
      : `All by this device.${end}`;
    this.#measure(cloudShare);
  }

  /** `used`: the share with what was dropped, known at the end. */
  #measure(used = this.tokens.cloud / Math.max(1, this.tokens.edge + this.tokens.cloud)) {
    const { edge, cloud } = this.tokens;
    const seconds = (performance.now() - this.begun) / 1000;
    const share = `used ${(100 * used).toFixed(1)}% of ${Math.round(100 * this.allowed)}%`;
    this.meters.textContent = `${edge + cloud} tokens · ${cloud} by the cloud (${share}) · ${((edge + cloud) / seconds).toFixed(1)} tokens/s`;
  }
}
