// An answer's counters, and its timeline.
import { faultOf } from "./answer.js";
import { Blocks } from "./blocks.js";
import { html } from "./ui.js";
import { milliseconds, percent } from "./words.js";

export function Meters({ answer }) {
  const { tokens } = answer;
  const cloud = tokens.filter((token) => token.source === "cloud").length;
  return html`
    <dl class="counters">
      ${counters(answer, cloud).map(([name, title, text]) => html`<div key=${name}><dt>${title}</dt><dd data-counter=${name}>${text}</dd></div>`)}
    </dl>
    <div class="timeline" role="img" aria-label=${`Timeline of ${tokens.length} tokens, ${cloud} by the cloud`}>
      <${Blocks} items=${tokens} draw=${bar} mark=${() => ""} />
    </div>
  `;
}

function counters(answer, cloud) {
  const { tokens, usage, timing, began } = answer;
  if (!tokens.length) return [["share", "cloud share", "–"], ["calls", "cloud calls", "–"], ["rate", "tokens/s", "–"], ["first", "first token", "–"]];
  const own = usage?.edgewise;
  // Asked for in vain: the cloud share counts it, as the usage at the end does.
  const late = tokens.filter((token) => token.reason === "timeout").length;
  const calls = tokens.filter((token) => token.source === "cloud" && token.reason !== "span").length;
  const seconds = timing?.total ?? (performance.now() - began) / 1000;
  return [
    ["share", "cloud share", percent(own?.cloud_share ?? (cloud + late) / tokens.length)],
    ["calls", "cloud calls", String(own?.cloud_calls ?? calls)],
    ["rate", "tokens/s", (tokens.length / seconds).toFixed(1)],
    ["first", "first token", milliseconds(timing?.ttft ?? tokens[0].seconds)],
    ...(own?.cost ? costs(own.cost) : []),
  ];
}

// Against what the cloud alone would have cost.
function costs(cost) {
  const money = (amount) => `${cost.estimated ? "about " : ""}${amount.toLocaleString("en", { maximumSignificantDigits: 3 })} ${cost.currency}`;
  return [["paid", "paid", money(cost.paid)], ["saved", "saved", money(cost.saved)]];
}

function bar(token) {
  const kind = token.source === "cloud" ? "cloud" : faultOf(token) ? "fallback" : "";
  // Below a sum of one they would not fill the line.
  return html`<span class=${kind} style=${{ flexGrow: 1000 * token.seconds }} title=${`${token.text} (${milliseconds(token.seconds)})`}></span>`;
}
