// The published curve of the bundled pair, and over it what replays in this conversation came to.
import { html } from "./ui.js";
import { inWords, mark } from "./graded.js";

const WIDTH = 420, HEIGHT = 190, LEFT = 40, RIGHT = 12, TOP = 12, BOTTOM = 34;
const SHARES = [0, 5, 10, 15];

// `points` are replays: {asked, share, right, work}, shares in percent; `curve` is curve.json, or
// null with a pair that it does not hold for.
export function Frontier({ points, curve }) {
  return html`
    <figure class="frontier">
      ${curve && html`<${Plot} points=${points} curve=${curve} />`}
      <figcaption>
        ${curve && html`<p>${captionOf(curve)}</p>`}
        <ol class="replays">${points.map((point) => html`<li>${inOneLine(point)}</li>`)}</ol>
      </figcaption>
    </figure>
  `;
}

const captionOf = ({ questions, task, pair, edge, cloud }) =>
  `Right answers of the bundled pair by cloud share: ${questions} questions of ${task}, with 95% intervals; ` +
  `edge alone ${edge.right}%, cloud alone ${cloud.right}%, ${pair.length} shares. ` +
  "A replay stands at its own share, above where it was right and below where it was wrong.";

const inOneLine = ({ asked, share, right, work }) =>
  `asked for ${asked}%: the cloud wrote ${share.toFixed(1)}%, the answer is ${inWords(right)}` +
  (work === null ? "" : `, the cloud computed and wrote ${work} tokens`);

function Plot({ points, curve }) {
  const most = Math.max(SHARES.at(-1), ...points.map((point) => point.share));
  const least = Math.floor(Math.min(curve.edge.right, ...curve.pair.map((point) => point.low)) / 10) * 10;
  const x = (share) => LEFT + (share / most) * (WIDTH - LEFT - RIGHT);
  const y = (right) => TOP + ((100 - right) / (100 - least)) * (HEIGHT - TOP - BOTTOM);
  return html`
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${`Right answers by cloud share, with ${points.length} replays of this conversation`}>
      ${[least, 100].map((right) => html`<text class="tick" x=${LEFT - 6} y=${y(right) + 4} text-anchor="end">${right}%</text>`)}
      ${SHARES.map((share) => html`<text class="tick" x=${x(share)} y=${HEIGHT - BOTTOM + 16} text-anchor="middle">${share}%</text>`)}
      <text class="tick" x=${WIDTH - RIGHT} y=${HEIGHT - 3} text-anchor="end">cloud share</text>
      <path class="axis" d="M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}" />
      ${["edge", "cloud"].map((name) => html`<path class=${`level ${name}`} d="M${LEFT} ${y(curve[name].right)}H${WIDTH - RIGHT}"><title>${name} alone: ${curve[name].right}%</title></path>`)}
      <polyline class="curve" points=${[{ share: 0, right: curve.edge.right }, ...curve.pair].map((one) => `${x(one.share)},${y(one.right)}`).join(" ")} />
      ${curve.pair.map((one) => html`<path class="interval" d="M${x(one.share)} ${y(one.low)}V${y(one.high)}"><title>${one.share}%: ${one.right}% right (${one.low} to ${one.high})</title></path>`)}
      ${points.map((point) => html`
        <text class=${`replay ${inWords(point.right).replace(" ", "-")}`} x=${x(point.share)} y=${placeOf(point, y(least))} text-anchor="middle">
          ${mark(point.right) || "•"}<title>${inOneLine(point)}</title>
        </text>
      `)}
    </svg>
  `;
}

function placeOf({ right }, floor) {
  if (right === null) return (TOP + floor) / 2;
  return right ? TOP + 10 : floor - 3;
}
