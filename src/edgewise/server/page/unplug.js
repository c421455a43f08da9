// A running answer, cut off from the cloud: the edge writes the rest.
import { headers, healthOf } from "./api.js";
import { redraw } from "./state.js";
import { html } from "./ui.js";

const cuts = new WeakMap(); // answer -> how many tokens it had

export function Unplug({ answer }) {
  const cut = cuts.get(answer);
  if (cut !== undefined) {
    const rest = answer.tokens.length - cut;
    return html`<p class="plug note">You unplugged the cloud after ${cut} tokens; ${answer.busy ? "the edge writes the rest." : `the edge wrote the other ${rest}.`}</p>`;
  }
  if (!answer.busy || !answer.id || answer.mode === "edge" || !healthOf(answer.model)?.cloud) return null;
  return html`<p class="plug"><button type="button" onClick=${() => unplug(answer)}>Unplug the cloud</button></p>`;
}

async function unplug(answer) {
  const reply = await fetch(`v1/answers/${answer.id}/unplug`, { method: "POST", headers: headers() }).catch(() => null);
  // Refused where the answer is over by now; a server that is gone shows in the answer itself.
  if (reply?.ok) cuts.set(answer, answer.tokens.length);
  redraw();
}
