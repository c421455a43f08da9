// An answer token by token: who wrote each, and what the edge would have written.
import { show } from "./actions.js";
import { Blocks } from "./blocks.js";
import { state } from "./state.js";
import { html } from "./ui.js";
import { UNSEEN } from "./words.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const CLASSES = { edge: "", fallback: " fallback", confirmed: " cloud confirmed", changed: " cloud changed", cloud: " cloud" };

export function Tokens({ answer }) {
  const { struck } = state.settings;
  const chosen = chosenOf(answer);
  return html`
    <div
      class="text"
      dir="auto"
      role="group"
      tabindex="0"
      aria-label="Answer; arrow keys go from token to token"
      onKeyDown=${(event) => walk(event, answer)}
      onBlur=${hide}
      onPointerOver=${(event) => !state.token?.pinned && point(event, answer)}
      onPointerLeave=${hide}
      onClick=${(event) => point(event, answer, { pinned: true })}
    >
      <${Blocks}
        items=${answer.tokens}
        draw=${(token, number) => html`<${TokenView} token=${token} number=${number} struck=${state.settings.struck} chosen=${chosenOf(answer) === number} />`}
        mark=${(start, end) => `${struck} ${chosen >= start && chosen < end ? chosen : ""}`}
      />
      ${answer.tail}
      ${answer.pending.map((guess) => html`<span class="token pending">${guess.text}</span>`)}
    </div>
  `;
}

function TokenView({ token, number, struck, chosen }) {
  const changed = token.kind === "changed";
  return html`
    <span class=${`token${CLASSES[token.kind]}${chosen ? " chosen" : ""}`} data-number=${number} data-reason=${token.reason}>
      ${changed && struck && html`<del>${visible(token.edge[0].token)}</del>`}${token.shown || (changed ? html`<i>${UNSEEN}</i>` : "")}
    </span>
  `;
}

// What was struck stands alone, so its own spaces say nothing.
function visible(text) {
  return text.trim() || (text.includes("\n") ? "⏎" : text ? "␣" : UNSEEN);
}

// The number of the token that is looked at; -1 where it is another answer's, or none.
function chosenOf(answer) {
  return state.token?.answer === answer ? state.token.number : -1;
}

// Arrows go from token to token; Enter keeps the panel open and goes there.
function walk(event, answer) {
  // As it is now: keys come faster than the page is drawn.
  const chosen = chosenOf(answer);
  const step = STEPS[event.key];
  if (event.key === "Enter" && chosen >= 0) show({ answer, number: chosen, pinned: true });
  if (!step || !answer.tokens.length) return;
  event.preventDefault();
  show({ answer, number: Math.min(answer.tokens.length - 1, Math.max(0, chosen + step)) });
}

function point(event, answer, { pinned = false } = {}) {
  const number = event.target.closest("[data-number]")?.dataset.number;
  if (number !== undefined) show({ answer, number: Number(number), pinned });
}

function hide() {
  if (!state.token?.pinned) show(null);
}
