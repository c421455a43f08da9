// The kinds of tokens, and whether what the edge would have written is shown.
import { set } from "./actions.js";
import { state } from "./state.js";
import { html } from "./ui.js";

// In `full` each is explained.
export function Legend({ full }) {
  const { struck } = state.settings;
  return html`
    <section class=${`legend${full ? " full" : ""}`} aria-label="Legend">
      <ul>
        <li><span class="token">edge</span>${full && " written by the small model on this device"}</li>
        <li><span class="token cloud confirmed">cloud, confirmed</span>${full && " the large model was asked, and would write what the edge would"}</li>
        <li>
          <span class="token cloud changed">${struck && html`<del>edge</del>`}cloud, changed</span>${full && " it was asked, and wrote otherwise"}
        </li>
      </ul>
      <label><input type="checkbox" checked=${struck} onChange=${(event) => set("struck", event.target.checked)} /> show what the edge would have written</label>
    </section>
  `;
}
