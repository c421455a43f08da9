// About one token: who wrote it and why, and what both models would have.
import { inVain } from "./answer.js";
import { closePanels } from "./panels.js";
import { state } from "./state.js";
import { html, useEffect, useRef } from "./ui.js";
import { KINDS, milliseconds, percent, reasonInWords } from "./words.js";

// It follows the pointer and the arrow keys; once pinned it stays, and can be used.
export function TokenPanel() {
  const { answer, number, pinned } = state.token ?? {};
  const token = answer?.tokens[number];
  return html`
    <aside id="details" class=${pinned ? "pinned" : ""} aria-live="polite" aria-label="About a token" hidden=${!token}>
      ${pinned && html`<${Close} />`}
      ${token && html`
        <p><bdi>“${token.text}”</bdi> ${whoWrote(token)}</p>
        <p>${[reasonInWords(token.reason), ...measured(token)].join(", ")}</p>
        <${Candidates} token=${token} />
      `}
    </aside>
  `;
}

function Close() {
  const button = useRef();
  useEffect(() => button.current.focus(), []);
  return html`<button ref=${button} class="close" type="button" onClick=${closePanels}>Close</button>`;
}

const whoWrote = (token) => KINDS[token.kind === "fallback" && !inVain(token) ? "edge" : token.kind];

function measured(token) {
  const threshold = token.threshold?.toFixed(3) ?? "–";
  const score = token.score == null ? [] : [`score ${token.score.toFixed(3)} (threshold ${threshold})`];
  return token.wait >= 0.001 ? [...score, `waited ${milliseconds(token.wait)}`] : score;
}

function Candidates({ token }) {
  const rows = Array.from({ length: Math.max(token.edge.length, token.cloud.length) });
  return html`
    <table>
      <thead><tr><th colspan="2" scope="col">edge</th><th colspan="2" scope="col">cloud</th></tr></thead>
      <tbody>
        ${rows.map((_, place) => html`<tr>${cells(token.edge[place])}${cells(token.cloud[place])}</tr>`)}
      </tbody>
    </table>
  `;
}

function cells(one) {
  return html`
    <td>${one && html`<bdi>${JSON.stringify(one.token).slice(1, -1)}</bdi>`}</td>
    <td>${one?.logprob == null ? "" : percent(Math.exp(one.logprob))}</td>
  `;
}
