// A running answer, cut off from the cloud: the edge goes on.
import { headers, healthOf } from "./api.js";
import { redraw } from "./state.js";
import { html } from "./ui.js";

const cuts = new WeakMap(); // answer -> {at, plugged}: how many tokens it had, and whether it is plugged in again

export function Unplug({ answer }) {
  const cut = cuts.get(answer);
  if (answer.busy && answer.id && answer.mode !== "edge" && healthOf(answer.model)?.cloud) {
    const out = cut && !cut.plugged;
    return html`
      <p class="plug"><button type="button" aria-pressed=${Boolean(out)} onClick=${() => turn(answer, !out)}>${out ? "Plug the cloud in" : "Unplug the cloud"}</button></p>
    `;
  }
  return cut ? html`<p class="plug note">Unplugged after ${cut.at} tokens; ${since(answer, cut.at)}</p>` : null;
}

function since(answer, at) {
  const cloud = answer.tokens.slice(at).filter((token) => token.source === "cloud").length;
  const rest = answer.tokens.length - at;
  return cloud ? `of the ${rest} behind it the cloud wrote ${cloud}.` : `the edge wrote the ${rest} behind it alone.`;
}

async function turn(answer, off) {
  const reply = await fetch(`v1/answers/${answer.id}/${off ? "unplug" : "plug"}`, { method: "POST", headers: headers() }).catch(() => null);
  // Refused where the answer is over by now; a server that is gone shows in the answer itself.
  if (reply?.ok) cuts.set(answer, { at: cuts.get(answer)?.at ?? answer.tokens.length, plugged: !off });
  redraw();
}
