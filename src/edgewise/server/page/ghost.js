// How the edge would have ended from a token that the cloud changed: asked for by going back there.
import { edgeOf, headers, told } from "./api.js";
import { inWords, isRight, mark } from "./graded.js";
import { isCompletion } from "./shapes.js";
import { redraw } from "./state.js";
import { html } from "./ui.js";
import { UNSEEN } from "./words.js";

const MARGIN = 64; // tokens that another ending may be longer

const ghosts = new WeakMap(); // answer -> Map of number -> {text, problem}

export function Ghosts({ turn, answer }) {
  const branches = answer.tokens.filter((token) => token.kind === "changed");
  if (!branches.length || !answer.promptIds || answer.busy) return null;
  const made = ghosts.get(answer) ?? new Map();
  return html`
    <div class="ghosts" role="group" aria-label="How the edge would have ended">
      <p class="note">${ending(turn, answer)}How the edge alone would have ended, from:
        ${branches.map((token) => html`
          <button type="button" key=${token.index} aria-expanded=${made.has(token.index)} onClick=${() => toggle(answer, token)}>
            <del><bdi>${token.edge[0].token || UNSEEN}</bdi></del> <bdi>${token.text || UNSEEN}</bdi>
          </button>
        `)}
      </p>
      ${[...made].map(([index, ghost]) => html`<${Ghost} key=${index} turn=${turn} answer=${answer} index=${index} ghost=${ghost} />`)}
    </div>
  `;
}

function ending(turn, answer) {
  const right = isRight(turn.prompt, answer.said);
  return right === null ? "" : html`This ending is ${inWords(right)} <span class="mark">${mark(right)}</span>. `;
}

function Ghost({ turn, answer, index, ghost }) {
  const before = answer.tokens.slice(0, index).map((token) => token.shown).join("");
  if (ghost.problem) return html`<p class="ghost problem" role="alert">${ghost.problem}</p>`;
  if (ghost.text === null) return html`<p class="ghost">…</p>`;
  const right = isRight(turn.prompt, before + ghost.text);
  return html`
    <p class="ghost" dir="auto" data-index=${index}>
      <span class="before">${before}</span><span class="other">${ghost.text || UNSEEN}</span>
      ${right !== null && html` <span class="mark" title=${inWords(right)} aria-label=${inWords(right)} role="img">${mark(right)}</span>`}
    </p>
  `;
}

async function toggle(answer, token) {
  const made = ghosts.get(answer) ?? new Map();
  ghosts.set(answer, made);
  if (made.delete(token.index)) return redraw();
  const ghost = { text: null, problem: "" };
  made.set(token.index, ghost);
  redraw();
  try {
    ghost.text = await edgeFrom(answer, token.index);
  } catch (error) {
    ghost.problem = error instanceof TypeError ? "The server does not answer." : error.message;
  }
  redraw();
}

// The edge's own words from a place of the answer on; nothing leaves for them.
async function edgeFrom(answer, index) {
  const { temperature } = answer;
  const response = await fetch("v1/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({
      model: edgeOf(answer.model),
      prompt: [...answer.promptIds, ...answer.tokens.slice(0, index).map((token) => token.id)],
      max_tokens: answer.tokens.length - index + MARGIN,
      ...(temperature === "" ? {} : { temperature: Number(temperature) }),
    }),
  });
  return (await told(response, isCompletion)).choices[0].text;
}
