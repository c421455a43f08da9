// The kinds of tokens, and whether what the edge would have written is shown.
import { set } from "./actions.js";
import { state } from "./state.js";
import { html } from "./ui.js";

export function Legend() {
  const { struck } = state.settings;
  return html`
    <section id="legend" aria-label="Legend">
      <ul>
        <li><span class="token">edge</span> the small model here</li>
        <li><span class="token cloud confirmed">cloud</span> asked, and of one mind with the edge</li>
        <li>
          <span class="token cloud changed">${struck && html`<del>edge</del>`}cloud</span> asked, and changed it
        </li>
      </ul>
      <label><input type="checkbox" checked=${struck} onChange=${(event) => set("struck", event.target.checked)} /> show what the edge would have written</label>
    </section>
  `;
}
