// One answer: its tokens as the server says who wrote them, and how it stands.
//
//   mode       "pair", "edge" or "cloud"; `model` is the id that was asked for
//   phase      "waiting", "writing", "done", "stopped" or "failed"
//   tokens     [{index, id, text, source, reason, score, seconds, wait, edge, cloud, draft, ratio, shown, kind}]:
//              the server's provenance, the text that it brought (`shown`) and its kind (`kindOf`);
//              `edge` and `cloud` are candidates, best first: {token, logprob}; `draft` is what the
//              edge would have written where the cloud did: {id, text}; `ratio` is how likely the
//              cloud holds the edge's token, over its own likeliest, where it verified that
//   pending    [{index, text}], draft tokens of the edge's during a consult
//   tail       text that no token brought: what was held back until the end
//   problem    "" or a sentence
//   usage, timing, finish   as the server says them at the end, else null; `finish` may be "repeats"
//   greedy     nothing was drawn
//   seed       of the draws, null if the server chose one; not kept
//   paced      shown at the pace of larger models
//   promptIds  the prompt's ids, as the server says them; not kept
//   cut        how many tokens it had when the cloud was disconnected, else null
//   began      performance.now() of the question; `seconds` from there to the end, null before it
//
// `take(chunk)` is the only way in.
const KEPT = ["mode", "model", "phase", "tail", "problem", "usage", "timing", "seconds", "finish", "local", "greedy", "paced", "cut"];

// Reasons of tokens whose consult failed, as the end of "The cloud ...".
const FAULTS = {
  timeout: "gave no answer in time",
  unavailable: "cannot be reached",
  refused: "refused the key",
  rejected: "declined the request",
  protocol: "answered with something else",
  grammar: "wrote what the answer's form does not allow",
  circuit_open: "is paused after failures",
};

export class Answer {
  version = 0; // grows with every change

  constructor(mode, model, { greedy = false, paced = false, seed = null } = {}) {
    Object.assign(this, { mode, model, greedy, paced, seed, phase: "waiting", tokens: [], pending: [] });
    Object.assign(this, { tail: "", problem: "", usage: null, timing: null, finish: null, local: false });
    Object.assign(this, { began: performance.now(), seconds: null, promptIds: null, cut: null });
  }

  get said() {
    return this.tokens.map((token) => token.shown).join("") + this.tail;
  }

  // Whether the cloud read along, rather than being asked by a router.
  get verified() {
    return this.tokens.some(wasVerified);
  }

  get busy() {
    return this.phase === "waiting" || this.phase === "writing";
  }

  // Seconds that it took, until now where it goes on; null where nobody knows any more.
  get lasted() {
    const since = this.busy ? (performance.now() - this.began) / 1000 : null;
    return this.timing?.total ?? this.seconds ?? since;
  }

  // One chunk of a streamed reply. Raises the error that it says.
  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message ?? "The server ended the answer and does not say why.");
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? "";
    const told = chunk.edgewise ?? {};
    this.version += 1;
    this.phase = "writing";
    this.promptIds = told.prompt_token_ids ?? this.promptIds;
    if (choice?.delta?.edgewise) this.local = true;
    if (told.pending) this.pending.push({ index: told.pending.index, text: told.pending.text });
    else if (told.rolled_back) this.#forget((draft) => draft.index < told.rolled_back.index);
    else if (told.token) this.#add(told.token, text);
    else this.tail += text;
    this.finish = choice?.finish_reason ?? this.finish;
    this.usage = chunk.usage ?? this.usage;
    if (this.usage?.edgewise.repeats) this.finish = "repeats";
    if (!this.paced) this.timing = told.timing ?? this.timing;
  }

  #add(token, text) {
    this.#forget((draft) => draft.index > token.index);
    this.tokens.push({ ...token, edge: token.edge ?? [], cloud: token.cloud ?? [], shown: text, kind: kindOf(token, this.mode) });
    // A pause follows from what failed before it, which says more.
    const fault = faultOf(token);
    if (fault && !(this.problem && token.reason === "circuit_open")) {
      this.problem = `The cloud ${fault} (${token.reason}); the edge model stood in.`;
    }
  }

  #forget(kept) {
    if (this.pending.length) this.pending = this.pending.filter(kept);
  }

  settle(phase, problem = "") {
    this.seconds = this.lasted;
    this.phase = phase;
    this.pending = [];
    this.problem = problem || this.problem;
    this.version += 1;
  }

  // Small enough to be kept: `lean` without candidates.
  toJSON(lean = false) {
    const shorter = ({ token, logprob }) => ({ token, logprob: logprob == null ? null : Number(logprob.toFixed(3)) });
    const candidates = (found, most) => (found ?? []).slice(0, most).map(shorter);
    const tokens = this.tokens.map((token) => ({
      ...token,
      edge: candidates(token.edge, lean ? 1 : 5),
      cloud: candidates(token.cloud, lean ? 0 : 5),
    }));
    return { ...Object.fromEntries(KEPT.map((name) => [name, this[name]])), seconds: this.lasted, tokens };
  }

  static from(kept) {
    const answer = new Answer(kept.mode, kept.model);
    for (const name of KEPT) answer[name] = kept[name] ?? answer[name];
    answer.tokens = kept.tokens.map((token) => ({ ...token, kind: kindOf(token, kept.mode) }));
    if (answer.busy) answer.phase = "stopped";
    return answer;
  }
}

// The sentence's end for a token whose consult failed, else undefined.
export function faultOf(token) {
  return Object.hasOwn(FAULTS, token.reason) ? FAULTS[token.reason] : undefined;
}

// Whether the cloud was asked for this token and brought nothing; a pause after failures asks nobody.
export function inVain(token) {
  return Boolean(faultOf(token)) && token.reason !== "circuit_open";
}

const wasVerified = ({ ratio, reason }) => ratio != null || reason === "verified" || reason === "corrected";

// Whether it is the edge's, and the cloud never read it.
export const isUnread = (token) => token.source === "edge" && !wasVerified(token) && token.reason !== "forced";

// "edge", "fallback" (the cloud failed, now or before), "confirmed" (the cloud's token is what the edge
// would have written), "changed", or "alone" where nobody knows what the edge would have written, or
// the cloud was to write all.
function kindOf(token, mode) {
  if (token.source !== "cloud") return faultOf(token) ? "fallback" : "edge";
  if (!token.draft || mode === "cloud") return "alone";
  return token.draft.id === token.id ? "confirmed" : "changed";
}
