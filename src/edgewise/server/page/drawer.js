// What left this device, by the server's record.
import { refresh } from "./api.js";
import { state } from "./state.js";
import { html } from "./ui.js";

const COLUMNS = ["when", "conversation", "host", "consults", "pushes", "bytes", "new tokens", "new characters"];

export function Sent() {
  const { sent } = state;
  const all = (count) => sent.reduce((sum, one) => sum + one[count], 0).toLocaleString("en");
  return html`
    <details id="sent" onToggle=${refresh}>
      <summary>What left this device: <output id="sent-sum">${sent.length ? `${all("bytes")} bytes, ${all("new_characters")} characters new` : "nothing"}</output></summary>
      <p>Bodies of messages to the cloud, of the last answers. New is what the host had not been told before in its conversation.</p>
      <div class="wide" tabindex="0" role="region" aria-label="What left, by answer">
        <table>
          <thead><tr>${COLUMNS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
          <tbody>${sent.map((one) => html`<tr key=${one.answer}>${cells(one).map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
        </table>
      </div>
    </details>
  `;
}

function cells(one) {
  const counts = [one.consults, one.pushes, one.bytes, one.new_tokens, one.new_characters];
  return [new Date(1000 * one.at).toLocaleTimeString(), one.conversation, one.host, ...counts.map((count) => count.toLocaleString("en"))];
}
