// A running answer, cut off from the cloud: the edge writes the rest.
import { unplug } from "./actions.js";
import { healthOf } from "./api.js";
import { html } from "./ui.js";

export function Unplug({ answer }) {
  const { busy, cut, mode, model, promptIds, tokens } = answer;
  if (cut !== null) {
    const rest = tokens.length - cut;
    return html`<p class="plug note">You unplugged the cloud after ${cut} tokens; ${busy ? "the edge writes the rest." : `the edge wrote the other ${rest}.`}</p>`;
  }
  if (!busy || !promptIds || mode === "edge" || !healthOf(model)?.cloud) return null;
  return html`<p class="plug"><button type="button" onClick=${() => unplug(answer)}>Unplug the cloud</button></p>`;
}
