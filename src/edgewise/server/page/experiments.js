// What can be tried with the last question, at the foot of the page: it stays in sight of the answer.
import { Race } from "./race.js";
import { Replay } from "./replay.js";
import { state } from "./state.js";
import { canBeLonger } from "./trip.js";
import { html } from "./ui.js";

export function Experiments({ conversation }) {
  if (!conversation.turns.length || !state.health?.cloud) return null;
  return html`
    <details id="experiments">
      <summary>Try the last question at another share${canBeLonger() ? ", or race it against the cloud alone" : ""}</summary>
      ${canBeLonger() && html`<${Race} conversation=${conversation} />`}
      <${Replay} conversation=${conversation} />
    </details>
  `;
}
