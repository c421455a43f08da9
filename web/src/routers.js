// Routers: pure functions from a step to a score between 0 (keep the edge's token) and 1 (ask the cloud).
// `needs` names what the step must hold: the likeliest ids (`top`), the entropy, the text before it.
import { UsageError } from "./errors.js";
import { TAIL, textOf } from "./text.js";

const QUANTILES = 65;

/** 1 - p1. */
export class MaxProb {
  needs = { top: 1, entropy: false, text: false };

  score(step) {
    return 1 - Math.exp(step.top[0].logprob);
  }
}

/** H / log V. */
export class Entropy {
  needs = { top: 1, entropy: true, text: false };

  score(step) {
    return Math.min(1, Math.max(0, step.entropy / Math.log(step.size)));
  }
}

/** Inputs by name. wllama hands out neither hidden states nor logits, so `hidden` and `scalars` are not here. */
const SIGNALS = new Map(Object.entries({
  top_logprobs: {
    needs: (k) => ({ top: k }),
    width: (k) => k,
    read: (step, { top_k: k }) => step.top.slice(0, k).map((one) => one.logprob),
  },
  text: {
    needs: () => ({ top: 2, text: true }),
    width: () => 25,
    read: (step) => textOf({ ...step.written, proposed: step.top[0].id, second: step.top[1].id }),
  },
  ranks: {
    needs: () => ({ top: 2, entropy: true }),
    width: () => 6,
    read: (step, { reference }) => ranksOf(uncertainties(step), reference),
  },
}));

/** A perceptron over a step's signals: a checkpoint that `edgewise train` wrote (routers/mlp.py). */
export class Mlp {
  #card;
  #layers;

  /**
   * @param {object} card the checkpoint's config.json
   * @param {ArrayBuffer} weights its model.safetensors
   */
  constructor(card, weights) {
    const inputs = card?.kind === "mlp" && Array.isArray(card.inputs) ? card.inputs : [card?.kind];
    const missing = inputs.filter((name) => !SIGNALS.has(name));
    if (missing.length) throw new UsageError(`A browser cannot read what this router reads: ${missing.join(", ")}.`);
    if (inputs.includes("ranks") && !isReference(card.reference)) throw new UsageError("The router's card has no reference scores.");
    this.#card = card;
    const signals = inputs.map((name) => SIGNALS.get(name));
    const needs = signals.map((one) => one.needs(card.top_k));
    this.needs = {
      top: Math.max(1, ...needs.map((one) => one.top ?? 1)),
      entropy: needs.some((one) => one.entropy),
      text: needs.some((one) => one.text),
    };
    const width = signals.reduce((sum, one) => sum + one.width(card.top_k), 0);
    this.#layers = layersOf(tensorsOf(weights), width);
  }

  score(step) {
    let x = this.#card.inputs.flatMap((name) => SIGNALS.get(name).read(step, this.#card));
    this.#layers.forEach(({ rows, bias }, index) => {
      x = rows.map((row, at) => row.reduce((sum, weight, i) => sum + weight * x[i], bias[at]));
      if (index < this.#layers.length - 1) x = x.map((one) => Math.max(one, 0));
    });
    return 0.5 * (1 + Math.tanh(0.5 * x[0]));
  }
}

/** By name, or a checkpoint's. */
export function routerNamed(name) {
  if (name === "max-prob") return new MaxProb();
  if (name === "entropy") return new Entropy();
  throw new UsageError(`There is no router ${JSON.stringify(name)}; known are max-prob and entropy.`);
}

/**
 * What the text signals read of the answer: `prompt` and `answer` are ids, `pieces` the text of each of
 * the answer's last tokens in bytes, `piece` the bytes of the proposed one.
 */
export function writtenOf({ prompt, answer, pieces, piece, ends }) {
  const decode = (parts) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(joined(parts));
  return { prompt, answer, ends, piece: decode([piece]), tail: decode(pieces.slice(-TAIL)) };
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function uncertainties(step) {
  const [first, second] = step.top.slice(0, 2).map((one) => Math.exp(one.logprob));
  return [step.entropy, 1 - first, 1 - first + second];
}

/** Each value's quantile among the reference's, then the log-odds of it. */
function ranksOf(values, reference) {
  const least = 0.5 / QUANTILES;
  const ranks = values.map((value, at) => {
    const known = reference[at];
    return Math.min(Math.max(interpolated(value, known), least), 1 - least);
  });
  return [...ranks, ...ranks.map((rank) => Math.log(rank / (1 - rank)))];
}

/** Ascending values of each uncertainty. */
const isReference = (found) =>
  Array.isArray(found) && found.length === 3 && found.every((known) => Array.isArray(known) && known.length > 1 && known.every(Number.isFinite));

/** Where `value` stands among ascending `known`, from 0 to 1. */
function interpolated(value, known) {
  const last = known.length - 1;
  if (value >= known[last]) return 1;
  const above = known.findIndex((one) => one > value);
  if (above <= 0) return 0;
  const [low, high] = [known[above - 1], known[above]];
  return (above - 1 + (value - low) / (high - low)) / last;
}

/** float32 tensors of a safetensors file, by name: `{shape, data}`. */
function tensorsOf(buffer) {
  try {
    const view = new DataView(buffer);
    const length = Number(view.getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    delete header.__metadata__;
    return Object.fromEntries(
      Object.entries(header).map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
        if (dtype !== "F32") throw new TypeError(`${name} is ${dtype}`);
        return [name, { shape, data: new Float32Array(buffer.slice(8 + length + start, 8 + length + end)) }];
      }),
    );
  } catch (error) {
    throw new UsageError(`The router's weights cannot be read (${error.message}).`);
  }
}

/** The layers, with the normalisation of the inputs folded into the first. */
function layersOf(tensors, width) {
  const layers = [];
  for (let i = 0, inputs = width; tensors[`layers.${i}.weight`]; i++) {
    const weight = tensors[`layers.${i}.weight`];
    const bias = [...(tensors[`layers.${i}.bias`]?.data ?? [])];
    const [rows, columns] = weight.shape;
    if (columns !== inputs || rows !== bias.length) break;
    const row = (at) => [...weight.data.subarray(at * columns, (at + 1) * columns)];
    layers.push({ rows: Array.from({ length: rows }, (_, at) => row(at)), bias });
    inputs = rows;
  }
  const { mean, std } = tensors;
  const holds = layers.length * 2 + 2 === Object.keys(tensors).length && layers.at(-1)?.rows.length === 1;
  const finite = Object.values(tensors).every(({ data }) => data.every(Number.isFinite));
  if (!holds || !finite || mean?.data.length !== width || std?.data.length !== width || std.data.includes(0)) {
    throw new UsageError(`The router's weights do not have ${width} inputs and one output.`);
  }
  const [first] = layers;
  first.rows = first.rows.map((row) => row.map((weight, i) => weight / std.data[i]));
  first.bias = first.bias.map((bias, at) => bias - first.rows[at].reduce((sum, weight, i) => sum + weight * mean.data[i], 0));
  return layers;
}
