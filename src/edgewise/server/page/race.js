// The last question asked of edge, pair and cloud at once, over a way as long as one likes.
import { regenerate, set } from "./actions.js";
import { state } from "./state.js";
import { TRIPS } from "./trip.js";
import { html } from "./ui.js";
import { NAMES } from "./words.js";

const raced = new WeakMap(); // turn -> milliseconds

export function Race({ conversation }) {
  return html`
    <form class="instrument" aria-label="Race" onSubmit=${(event) => (event.preventDefault(), race(conversation))}>
      <label>Round trip to the cloud
        <select id="trip" value=${state.settings.trip} onChange=${(event) => set("trip", Number(event.target.value))}>
          ${TRIPS.map((trip) => html`<option value=${trip}>${trip ? `${trip} ms` : "as it is"}</option>`)}
        </select>
      </label>
      <button aria-disabled=${Boolean(state.underWay)}>Race the last question</button>
      <span class="note">All start at once on this machine. The cloud alone pays the trip once, as a stream does.</span>
    </form>
  `;
}

function race(conversation) {
  if (state.underWay || conversation !== state.conversation) return;
  set("mode", "beside");
  regenerate(conversation.turns.at(-1), { live: true });
  raced.set(conversation.turns.at(-1), state.settings.trip);
}

// Who was done when.
export function Finish({ turn }) {
  const done = turn.modes.filter((mode) => turn.answers[mode].timing);
  if (done.length < 2) return null;
  const seconds = (mode) => turn.answers[mode].timing.total;
  const order = done.sort((one, other) => seconds(one) - seconds(other));
  const trip = raced.get(turn);
  return html`
    <p class="finish note">
      ${trip ? `At a round trip of ${trip} ms: ` : ""}${order.map((mode) => `${NAMES[mode]} ${seconds(mode).toFixed(2)} s`).join(", ")}
    </p>
  `;
}
