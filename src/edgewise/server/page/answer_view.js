// One answer: its tokens or its formatted text, what can be done with it, and its instruments.
import { set } from "./actions.js";
import { copy } from "./copying.js";
import { Formatted } from "./formatted.js";
import { Meters } from "./meters.js";
import { state } from "./state.js";
import { Tokens } from "./tokens.js";
import { html, useState } from "./ui.js";
import { Unplug } from "./unplug.js";

export function AnswerView({ turn, answer }) {
  const formatted = state.settings.view === "formatted";
  return html`
    <article class="answer" aria-busy=${answer.busy}>
      ${answer.recorded && html`<p class="recording">A recording of the bundled pair</p>`}
      ${formatted ? html`<${Formatted} text=${answer.said} busy=${answer.busy} />` : html`<${Tokens} answer=${answer} />`}
      ${answer.problem && html`<p class="problem" role="alert">${answer.problem}</p>`}
      ${answer.phase === "stopped" && html`<p class="note">Stopped.</p>`}
      ${answer.finish === "length" && html`<p class="note">Cut at the longest length.</p>`}
      <${Unplug} answer=${answer} />
      <${Meters} turn=${turn} answer=${answer} />
      <div class="actions" aria-live="off">
        <${Copy} answer=${answer} />
        <button type="button" aria-pressed=${formatted} onClick=${() => set("view", formatted ? "tokens" : "formatted")}>Formatted</button>
      </div>
    </article>
  `;
}

function Copy({ answer }) {
  const [told, tell] = useState("");
  return html`
    <button type="button" onClick=${async () => tell(await copy(answer.said))}>Copy</button>
    <span class="note" role="status">${told}</span>
  `;
}
