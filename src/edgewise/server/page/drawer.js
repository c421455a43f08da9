// What left this device, by the server's record: counts for each answer, under its conversation.
import { refresh } from "./api.js";
import { state } from "./state.js";
import { html } from "./ui.js";

const COUNTS = { consults: "consults", prefetches: "prefetches", bytes: "bytes", tokens: "token ids" };

export function Sent() {
  const { sent } = state;
  return html`
    <details id="sent" onToggle=${refresh}>
      <summary>What left this device: <output id="sent-sum">${inShort(sent)}</output></summary>
      ${!sent && html`<p>The server does not tell: it asks for its key, or has several; <code>GET /v1/sent</code> shows it to who runs it.</p>`}
      <p>Bodies of messages to the cloud, of the server's last answers; counts, never text. A model in the server's process is sent nothing.</p>
      <div class="wide" tabindex="0" role="region" aria-label="What left, by conversation and answer">
        <table>
          <thead><tr><th scope="col">answer</th><th scope="col">host</th>${Object.values(COUNTS).map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
          ${[...Map.groupBy(sent ?? [], (one) => one.conversation)].map(([name, answers]) => html`<${Conversation} key=${name} name=${name} answers=${answers} />`)}
        </table>
      </div>
    </details>
  `;
}

function inShort(sent) {
  if (!sent?.length) return sent ? "nothing" : "not known";
  return `${number(summed(sent).bytes)} bytes`;
}

function Conversation({ name, answers }) {
  const hosts = [...new Set(answers.map((one) => one.host))].join(", ");
  return html`
    <tbody>
      <tr class="whole"><th scope="row">conversation ${name}</th><td>${hosts}</td>${cells(summed(answers))}</tr>
      ${answers.map((one) => html`<tr key=${one.answer} class="answered"><td>${new Date(1000 * one.at).toLocaleTimeString()}</td><td>${one.host}</td>${cells(one)}</tr>`)}
    </tbody>
  `;
}

const cells = (counts) => Object.keys(COUNTS).map((count) => html`<td>${number(counts[count])}</td>`);
const number = (count) => count.toLocaleString("en");

function summed(answers) {
  return Object.fromEntries(Object.keys(COUNTS).map((count) => [count, answers.reduce((sum, one) => sum + one[count], 0)]));
}
