// The last question, asked again at another share; each replay is a point over the curve.
import { regenerate, set } from "./actions.js";
import { nameOf, shareNow, told } from "./api.js";
import { Frontier } from "./frontier.js";
import { isRight } from "./graded.js";
import { isCurve } from "./shapes.js";
import { redraw, state } from "./state.js";
import { html, useState } from "./ui.js";

const MOST = 15; // percent

const replays = new WeakMap(); // conversation -> [{turn, answer, asked}]
let curve = null; // curve.json; undefined while it is read
let replaying = false;
let next = null; // the share to replay at when this replay is over

export function Replay({ conversation }) {
  const [share, choose] = useState(Math.min(MOST, shareNow() ?? 0));
  // Those of another model are no points of this one's.
  const own = (replays.get(conversation) ?? []).filter(({ answer }) => nameOf(answer.model) === state.health.model);
  const points = own.map(pointOf);
  return html`
    <section class="instrument" aria-label="Replay at another share">
      <label class="share">Replay at a share of
        <input id="replay" type="range" min="0" max=${MOST} step="1" value=${share} disabled=${Boolean(state.underWay) && !replaying}
          onInput=${(event) => choose(Number(event.target.value))} onChange=${(event) => replay(conversation, Number(event.target.value))} />
        <output for="replay">${share}%</output>
      </label>
      ${points.length > 0 && html`<${Frontier} points=${points} curve=${state.health.bundled ? readCurve() : null} />`}
    </section>
  `;
}

// The last question once more; what is moved meanwhile is replayed afterwards, unless that is stopped.
async function replay(conversation, share) {
  if (replaying) next = share;
  if (replaying || state.underWay) return;
  replaying = true;
  for (let wanted = share; wanted !== null && conversation === state.conversation; wanted = next === wanted ? null : next) {
    next = null;
    if (!(await replayAt(conversation, wanted))) break;
  }
  replaying = false;
  redraw();
}

// Whether it came to an end.
async function replayAt(conversation, share) {
  set("share", String(share));
  if (state.settings.mode !== "beside") set("mode", "pair");
  const turn = await regenerate(conversation.turns.at(-1), { live: true });
  const answer = turn?.answers.pair;
  if (answer?.phase === "done" && answer.usage) {
    replays.set(conversation, [...(replays.get(conversation) ?? []), { turn, answer, asked: share }]);
  }
  return Boolean(answer) && answer.phase !== "stopped";
}

function pointOf({ turn, answer, asked }) {
  const { cloud_share, cloud_prompt_computed, cloud_completion_tokens } = answer.usage.edgewise;
  const work = cloud_prompt_computed === null ? null : cloud_prompt_computed + cloud_completion_tokens;
  return { asked, share: 100 * cloud_share, right: isRight(turn.prompt, answer.said), work };
}

function readCurve() {
  if (curve === null) {
    curve = undefined;
    fetch("curve.json").then((response) => told(response, isCurve)).then((read) => (curve = read), noCurve).then(redraw);
  }
  return curve ?? null;
}

// The points are listed all the same.
function noCurve() {}
