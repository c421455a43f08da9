// The decoding loop: step, score, decide, consult, write (docs/life-of-a-token.md). It drafts nothing:
// while a consult is under way the edge waits. Greedy; no grammar, no stop strings.
import { CloudError, UsageError } from "./errors.js";
import { Breaker, Latency } from "./health.js";
import { Budget } from "./policy.js";
import { writtenOf } from "./routers.js";
import { TAIL } from "./text.js";

const LONGEST_CYCLE = 64;
const ENDLESS = 256;

/** Whether the last `ENDLESS` ids of an answer from `start` on repeat one cycle. */
function circles(ids, start) {
  const last = ids.length - 1;
  for (let cycle = 1; cycle <= Math.min(LONGEST_CYCLE, ids.length - start - ENDLESS); cycle++) {
    let run = 0;
    while (run < ENDLESS && ids[last - run] === ids[last - run - cycle]) run++;
    if (run === ENDLESS) return true;
  }
  return false;
}

/**
 * Answer the ids `prompt`, event by event: `token`, `consult`, and at last `finished`.
 * `budget` is what the conversation's last answer left, in its `finished`; `breaker` and `latency` are
 * shared by all answers through one gateway. `signal` stops it, with what was written so far.
 */
export async function* stream(prompt, options) {
  const answer = new Answer(prompt, options);
  try {
    yield* answer.run();
  } finally {
    answer.stopping.abort();
  }
}

class Answer {
  constructor(prompt, { edge, router, policy, gateway = null, maxTokens, budget, breaker, latency, signal }) {
    if (!prompt.length) throw new UsageError("The prompt is empty; give at least one character.");
    if (prompt.length > edge.context) {
      throw new UsageError(`The prompt has ${prompt.length} tokens and the context holds ${edge.context}; shorten it.`);
    }
    Object.assign(this, { edge, router, policy, signal });
    this.prompt = prompt;
    this.ids = [...prompt];
    this.maxTokens = maxTokens ?? Math.max(1, edge.context - prompt.length + 1);
    this.gateway = policy.asks ? gateway : null;
    this.budget = budget ?? new Budget();
    this.breaker = breaker ?? new Breaker();
    this.latency = latency ?? new Latency();
    this.stopping = new AbortController();
    this.text = new TextDecoder("utf-8", { ignoreBOM: true });
    this.pieces = [];
    this.queue = [];
    this.first = true;
    this.end = null;
    this.counts = { edge: 0, cloud: 0, corrections: 0, calls: 0, failed: 0, wasted: 0, repeats: false };
    this.dropped = 0;
  }

  get index() {
    return this.ids.length - this.prompt.length;
  }

  async *run() {
    this.gateway?.forgetPrefetched();
    this.prefetch();
    await this.edge.open(this.prompt);
    while (this.end === null) {
      if (this.signal?.aborted) this.end = "stopped";
      else if (this.queue.length) yield await this.writeCloud("span");
      else yield* this.advance();
    }
    const { counts, policy } = this;
    const wasted = counts.wasted + this.queue.length + this.dropped;
    yield {
      type: "finished",
      text: this.text.decode(),
      finishReason: this.end,
      usage: { promptTokens: this.prompt.length, ...counts, wasted },
      cloudShare: this.index ? Math.min(1, (counts.cloud + wasted) / this.index) : 0,
      budget: policy.nextAnswer(this.budget, this.dropped),
    };
  }

  /** One token by the edge, or a consult and its first token. */
  async *advance() {
    const read = await this.read();
    if (this.signal?.aborted) return;
    let { ask, reason } = this.policy.decide(read.score, this.budget);
    ask = Math.min(ask, this.maxTokens - this.index);
    if (ask) {
      const outcome = await this.consult(ask, read);
      if (outcome.event) yield outcome.event;
      if (this.queue.length) {
        yield await this.writeCloud("critical", read);
        return;
      }
      if (this.signal?.aborted) return;
      reason = outcome.reason;
    }
    yield await this.write(read.id, "edge", reason, { read, logprob: read.logprob });
  }

  async read() {
    const { router, edge } = this;
    const step = await edge.step(router.needs);
    const [{ id, logprob }] = step.top;
    if (router.needs.text) {
      const answer = this.ids.slice(this.prompt.length);
      const ends = edge.eosIds.has(id);
      step.written = writtenOf({ prompt: this.prompt, answer, pieces: this.pieces, piece: edge.piece(id), ends });
    }
    const score = router.score(step);
    if (!(score >= 0 && score <= 1)) throw new UsageError(`The router gave the score ${score}, which is not from 0 to 1.`);
    // The one that decides: a consult moves it.
    const threshold = this.policy.asks ? this.policy.thresholdNow(this.budget) : null;
    return { id, logprob, score, threshold, candidates: step.top.slice(0, 5) };
  }

  /** Ask for `ask` tokens; the completion is in the queue, or the reason why there is none. */
  async consult(ask, read) {
    const { gateway, breaker, latency, policy } = this;
    if (!gateway?.allowed) return { reason: "no_cloud" };
    if (!breaker.allow()) return { reason: "circuit_open" };
    const { first, index } = this;
    const probe = breaker.isOpen;
    const deadline = policy.deadlineNow(latency, { first, prompt: this.ids.length });
    const begun = performance.now();
    const asked = gateway.ask(this.ids, { n: ask, deadline, signal: this.stopping.signal });
    const prefix = this.ids.length;
    const landed = asked.then(
      (completion) => {
        const seconds = (performance.now() - begun) / 1000;
        latency.answered(seconds, { first, prefix, ...completion });
        this.first = false;
        breaker.succeeded();
        return completion;
      },
      (error) => {
        const stopped = this.signal?.aborted;
        // A stop says nothing of the link.
        if (stopped && probe) breaker.probeCancelled();
        if (stopped) throw error;
        const late = error.reason === "timeout";
        if (late) latency.timedOut(deadline, { first });
        // A link that could not be made for so long was as silent.
        const slow = performance.now() - begun > 500 * deadline;
        breaker.failed({ silent: late || slow, probe });
        throw error;
      },
    );
    if (probe) {
      // Do not wait for a silent cloud. The probe decides on later consults.
      landed.catch(() => {});
      this.dropped += ask;
      return { reason: "circuit_open" };
    }
    const stop = () => this.stopping.abort();
    this.signal?.addEventListener("abort", stop);
    try {
      const completion = await landed;
      this.answered(completion, read.id);
      return { event: this.report(index, ask, "answered", begun, completion.ids.length) };
    } catch (error) {
      if (!(error instanceof CloudError)) throw error;
      if (this.signal?.aborted) {
        this.dropped += ask;
        return {};
      }
      // After a timeout the cloud may still write what it was asked for.
      const lost = error.reason === "timeout" ? ask : 0;
      this.budget = policy.charge(this.budget, lost);
      this.counts.calls += 1;
      this.counts.failed += 1;
      this.counts.wasted += lost;
      return { event: { ...this.report(index, ask, error.reason, begun, 0), message: error.message }, reason: error.reason };
    } finally {
      this.signal?.removeEventListener("abort", stop);
    }
  }

  answered({ ids, logprobs, top, stopped }, edgeId) {
    const kept = this.policy.kept(this.budget, ids.length);
    const last = ids.length - 1;
    this.queue = ids.slice(0, kept).map((id, i) => ({ id, logprob: logprobs[i], top: top[i] ?? [], ends: stopped && i === last }));
    this.budget = this.policy.charge(this.budget, kept);
    this.counts.calls += 1;
    this.counts.corrections += Number(ids[0] !== edgeId);
  }

  report(index, requested, outcome, begun, answered) {
    return { type: "consult", index, outcome, requested, answered, seconds: (performance.now() - begun) / 1000 };
  }

  async writeCloud(reason, read = null) {
    const { id, logprob, top, ends } = this.queue.shift();
    return this.write(id, "cloud", reason, { read, logprob, cloud: top, ends });
  }

  /** Append the answer's next token. */
  async write(id, source, reason, { read, logprob, cloud = [], ends = false }) {
    const { policy, edge, index } = this;
    const ended = ends || edge.eosIds.has(id);
    const piece = ended ? new Uint8Array() : edge.piece(id);
    this.pieces.push(edge.piece(id));
    if (this.pieces.length > TAIL) this.pieces.shift();
    this.ids.push(id);
    this.budget = policy.written(this.budget);
    this.counts[source] += 1;
    if (ended) this.end = "stop";
    else if (this.index === this.maxTokens || this.ids.length > edge.context) this.end = "length";
    else if (circles(this.ids, this.prompt.length)) {
      this.end = "length";
      this.counts.repeats = true;
    } else {
      edge.extend([id]);
      this.prefetch();
    }
    const text = this.text.decode(piece, { stream: true });
    return {
      type: "token",
      index,
      id,
      text,
      source,
      reason,
      score: read?.score ?? null,
      threshold: read?.threshold ?? null,
      logprob,
      edge: read?.candidates ?? [],
      cloud,
    };
  }

  prefetch() {
    if (this.gateway && !this.signal?.aborted && this.policy.mayAsk(this.budget)) this.gateway.prefetch(this.ids);
  }
}
