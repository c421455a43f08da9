// An answer's counters in one line, its timeline, and why nothing was routed where nothing was.
import { faultOf, inVain } from "./answer.js";
import { html, useMemo } from "./ui.js";
import { whyNothing } from "./why.js";
import { milliseconds, percent } from "./words.js";

export function Meters({ turn, answer }) {
  const { tokens } = answer;
  const cloud = tokens.filter((token) => token.source === "cloud").length;
  const why = whyNothing(turn, answer);
  return html`
    ${why && html`<p class="note why">${why}</p>`}
    <dl class="counters" aria-live="off">
      ${counters(answer, cloud).map(([name, title, text]) => html`<div key=${name}><dt>${title}</dt><dd data-counter=${name}>${text}</dd></div>`)}
    </dl>
    <${Timeline} tokens=${tokens} cloud=${cloud} />
  `;
}

const MANY = 120; // tokens: of more there is no pixel for each and the gap beside it on a phone

function Timeline({ tokens, cloud }) {
  const many = tokens.length > MANY;
  const bars = useMemo(() => (many ? runs(tokens) : tokens.map((token) => [token])).map(bar), [tokens, tokens.length]);
  return html`
    <div class=${`timeline${many ? " many" : ""}`} role="img" aria-label=${`Timeline of ${tokens.length} tokens, ${cloud} by the cloud`}>${bars}</div>
  `;
}

// Neighbours of one kind together.
function runs(tokens) {
  const found = [];
  for (const token of tokens) {
    if (found.length && barOf(found.at(-1)[0]) === barOf(token)) found.at(-1).push(token);
    else found.push([token]);
  }
  return found;
}

const NONE = "–";
const FIRST = [["time", "time"], ["first", "first token"], ["rate", "tokens/s"], ["share", "cloud share"], ["calls", "changed / consulted"]];

// While it is written from the tokens, at the end as the server says: what nobody counted is a dash.
function counters(answer, cloud) {
  const { tokens, usage, timing, lasted } = answer;
  if (!tokens.length) return FIRST.map(([name, title]) => [name, title, NONE]);
  const own = usage?.edgewise;
  // Asked for in vain: the cloud share counts it, as the usage at the end does.
  const late = tokens.filter((token) => token.reason === "timeout").length;
  const brought = tokens.filter((token) => token.source === "cloud" && token.reason !== "span");
  const changed = brought.filter((token) => token.kind === "changed").length;
  const calls = brought.length + tokens.filter(inVain).length;
  const now = {
    time: lasted === null ? NONE : `${lasted.toFixed(2)} s`,
    first: milliseconds(timing?.ttft ?? tokens[0].seconds),
    rate: lasted ? (tokens.length / lasted).toFixed(1) : NONE,
    share: percent(own?.cloud_share ?? (cloud + late) / tokens.length),
    calls: `${own?.correction_tokens ?? changed} / ${own?.cloud_calls ?? calls}`,
  };
  return [...FIRST.map(([name, title]) => [name, title, now[name]]), ...(own ? atTheEnd(own, cloud) : [])];
}

function atTheEnd({ cloud_calls, cloud_prompt_cached, cloud_prompt_computed, sent, cost }, cloud) {
  const count = (known) => (known == null ? NONE : known.toLocaleString("en"));
  // The meter is that of answered consults; what the others made the cloud read nobody knows.
  const read = cloud_calls && !cloud ? [null, null] : [cloud_prompt_cached, cloud_prompt_computed];
  return [
    ["read", "prompts cached / computed", read.map(count).join(" / ")],
    ["bytes", "left this device", `${count(sent?.bytes)} bytes`],
    ...(cost ? costs(cost) : []),
  ];
}

// Against what the cloud alone would have cost.
function costs(cost) {
  const money = (amount) => `${cost.estimated ? "about " : ""}${amount.toLocaleString("en", { maximumSignificantDigits: 3 })} ${cost.currency}`;
  return [["paid", "paid", money(cost.paid)], ["alone", "cloud alone", money(cost.alone)], ["saved", "saved", money(cost.saved)]];
}

const barOf = (token) => (token.source === "cloud" ? "cloud" : faultOf(token) ? "fallback" : "");

function bar(run) {
  const seconds = run.reduce((sum, token) => sum + token.seconds, 0);
  const what = run.length > 1 ? `${run.length} tokens` : run[0].text;
  // Below a sum of one they would not fill the line; what took no time is seen all the same.
  return html`<span class=${barOf(run[0])} style=${{ flexGrow: Math.max(1, 1000 * seconds) }} title=${`${what} (${milliseconds(seconds)})`}></span>`;
}
