// When to consult (loop/policy.py): threshold, cloud share, cap, span and deadline live here alone.
// In a browser nothing is verified: routers alone decide.
import { UsageError } from "./errors.js";

const INITIAL_BUCKET = 16;
const MAX_BUCKET = 64;
const GAIN = 0.1;
const PATIENCE = 4;
const SHORTEST_DEADLINE = 0.5;
const LONGEST_DEADLINE = 5;
const LONGEST_READING = 60;
const UNKNOWN_READING = 0.02;

/**
 * What the policy remembers from token to token; immutable. `bucket`: tokens that the cloud may write
 * now; `charged`: what counts against the cap.
 */
export class Budget {
  constructor({ bucket = INITIAL_BUCKET, charged = 0 } = {}) {
    Object.assign(this, { bucket, charged });
    Object.freeze(this);
  }

  with(changes) {
    return new Budget({ ...this, ...changes });
  }
}

const logOdds = (score) => {
  const bounded = Math.min(Math.max(score, 1e-6), 1 - 1e-6);
  return Math.log(bounded / (1 - bounded));
};

/**
 * The one dial. Without `cloudShare` the threshold is static; with it a token bucket bounds the share,
 * and its level moves the threshold: below `threshold` where it is full, above where it is empty.
 */
export class Policy {
  constructor({ threshold = 0.5, cloudShare = null, maxCloudTokens = null, span = 1, deadline = null } = {}) {
    const fraction = (value) => value >= 0 && value <= 1;
    for (const [name, holds, bound] of [
      ["threshold", fraction(threshold), "from 0 to 1"],
      ["cloudShare", cloudShare === null || fraction(cloudShare), "from 0 to 1"],
      ["maxCloudTokens", maxCloudTokens === null || maxCloudTokens >= 0, "0 or more"],
      ["span", span >= 1, "1 or more"],
      ["deadline", deadline === null || (deadline > 0 && deadline < Infinity), "positive, in seconds"],
    ]) {
      if (!holds) throw new UsageError(`${name} must be ${bound}.`);
    }
    Object.assign(this, { threshold, cloudShare, maxCloudTokens, span, deadline });
    Object.freeze(this);
  }

  /** Whether the cloud can ever be asked; if not, no connection is opened and nothing is sent. */
  get asks() {
    return this.cloudShare !== 0 && this.maxCloudTokens !== 0;
  }

  /** @returns {{ask: number, reason: string}} 0 tokens to keep the edge's, and why. */
  decide(score, budget) {
    if (score < this.thresholdNow(budget)) return { ask: 0, reason: "below_threshold" };
    const room = this.#room(budget);
    if (room < 1) return { ask: 0, reason: "cap" };
    if (this.cloudShare === null) return { ask: Math.min(this.span, room), reason: "critical" };
    if (this.cloudShare < 1 && budget.bucket < 1) return { ask: 0, reason: "budget" };
    const affordable = this.cloudShare === 1 ? this.span : Math.trunc(budget.bucket);
    return { ask: Math.min(this.span, room, affordable), reason: "critical" };
  }

  thresholdNow(budget) {
    if (this.cloudShare === null) return this.threshold;
    if (this.cloudShare === 0 || this.cloudShare === 1) return this.cloudShare ? 0 : 2;
    return 1 / (1 + Math.exp(-(logOdds(this.threshold) + GAIN * (INITIAL_BUCKET - budget.bucket))));
  }

  mayAsk(budget) {
    return this.asks && this.#room(budget) > 0;
  }

  /** Seconds that a consult sent now may take: as set, or four times the recent median within bounds. */
  deadlineNow(latency, { first, prompt }) {
    if (this.deadline !== null) return this.deadline;
    const backOff = 2 ** Math.min(latency.timeouts, 4);
    const median = latency.median(first);
    const patience =
      median === null
        ? LONGEST_DEADLINE
        : Math.min(Math.max(SHORTEST_DEADLINE, PATIENCE * median) * backOff, LONGEST_DEADLINE);
    if (!first) return patience;
    const token = latency.reading === null ? UNKNOWN_READING : 2 * latency.reading;
    return Math.max(patience, Math.min(prompt * token * backOff, LONGEST_READING));
  }

  /** Of so many tokens of a completion, those that the cap has room for. */
  kept(budget, tokens) {
    return this.maxCloudTokens === null ? tokens : Math.min(tokens, this.#room(budget));
  }

  charge(budget, tokens) {
    return budget.with({ bucket: budget.bucket - tokens, charged: budget.charged + tokens });
  }

  /** The budget after one more token of the answer, which earns the share. */
  written(budget) {
    if (this.cloudShare === null) return budget;
    return budget.with({ bucket: Math.min(budget.bucket + this.cloudShare, MAX_BUCKET) });
  }

  /** The budget with which a conversation's next answer starts; `wasted` tokens are paid for here. */
  nextAnswer(budget, wasted = 0) {
    const lost = this.cloudShare === null ? 0 : wasted;
    return budget.with({ bucket: budget.bucket - lost, charged: 0 });
  }

  #room(budget) {
    return this.maxCloudTokens === null ? this.span : this.maxCloudTokens - budget.charged;
  }
}
