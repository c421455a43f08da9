// What a newcomer sees: one sentence, and questions that were recorded.
import { play, send } from "./actions.js";
import { Legend } from "./legend.js";
import { state } from "./state.js";
import { html } from "./ui.js";

export function FirstScreen() {
  const { health, recordings } = state;
  const live = Boolean(health?.bundled);
  return html`
    <section id="first" aria-label="Begin">
      <p class="point">A small model on this device writes; a large one in the cloud is asked for the few tokens that decide.</p>
      <${Legend} full=${true} />
      <p>${live ? "Play a recording of the pair that runs here, or ask it for real:" : "Play a recording of the bundled pair, which needs no model, or ask your own question below:"}</p>
      <ul class="recordings">
        ${recordings.map((one) => html`<${Recording} key=${one.name} recording=${one} live=${live} />`)}
      </ul>
    </section>
  `;
}

function Recording({ recording, live }) {
  return html`
    <li>
      <h2>${recording.title}</h2>
      <p>${bare(recording.prompt)}</p>
      <button class="primary" type="button" aria-label=${`Play: ${recording.title}`} onClick=${() => play(recording)}>Play</button>
      ${live && html`<button type="button" aria-label=${`Ask for real: ${recording.title}`} onClick=${() => send(recording.prompt)}>Ask for real</button>`}
    </li>
  `;
}

// Without the words that the pair was trained to find around a question.
function bare(prompt) {
  return prompt.replace(/^Question: /, "").replace(/ Answer and Reasoning:$/, "");
}
