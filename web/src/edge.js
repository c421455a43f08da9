// The edge model: a GGUF file in wllama (llama.cpp as WebAssembly), which decodes in a worker of its own.
import { UsageError } from "./errors.js";
import { PROBES, fingerprint } from "./protocol.js";

const CONTEXT = 2048;
const CANDIDATES = 5;
const NOTHING = new Uint8Array();
// Stands for nothing in Unicode: nobody may send it to somebody else.
const MARK = "\uFDD0";

export class Edge {
  /**
   * @param {Blob} file a GGUF model
   * @param {object} engine `Wllama` and `Template`: the classes of @wllama/wllama and @huggingface/jinja;
   *   `wasm`: the address of wllama's single-thread wllama.wasm
   * @param {object} options `context`: ids a session; by default what suits the model, at most 2048
   */
  static async load(file, { Wllama, Template, wasm }, { context } = {}) {
    const quiet = { debug() {}, log() {}, warn() {}, error: console.error };
    const engine = new Wllama({ "single-thread/wllama.wasm": wasm }, { logger: quiet, suppressNativeLog: true });
    try {
      // One thread: on busy cores llama.cpp's threads wait for each other, in WebAssembly by spinning.
      await engine.loadModel([file], { n_ctx: context ?? CONTEXT, n_threads: 1, n_batch: 512 });
    } catch (error) {
      await engine.exit().catch(() => {});
      throw new UsageError(`The model cannot be loaded (${error.message}).`);
    }
    const info = engine.getLoadedContextInfo();
    const edge = new Edge(engine, info, Template);
    edge.context = Math.min(context ?? CONTEXT, info.n_ctx, info.n_ctx_train);
    await edge.#readVocabulary();
    return edge;
  }

  #engine;
  #Template;
  #info;
  #pieces = [];
  #special = new Map();
  #held = [];
  #queued = [];

  constructor(engine, info, Template) {
    this.#engine = engine;
    this.#info = info;
    this.#Template = Template;
    /** How many ids and logits there are. */
    this.size = info.n_vocab;
    this.eosIds = new Set([...info.list_tokens_eog, info.token_eos, info.token_eot].filter((id) => id >= 0));
    /** What `open` tells a gateway of the vocabulary. */
    this.tokenizer = "";
  }

  async #readVocabulary() {
    // wllama 2.4 puts as many empty ones before them.
    this.#pieces = (await this.#engine.getVocab()).slice(-this.size).map((piece) => Uint8Array.from(piece));
    const texts = this.#pieces.map((piece) => new TextDecoder().decode(piece));
    const likely = texts.flatMap((text, id) => (/^[<[\u3010].*[>\]\u3011]$/s.test(text) ? [id] : []));
    for (const id of likely) {
      // A control token is read where they are looked for, and is text elsewhere.
      const [read, plain] = [await this.encode(texts[id], true), await this.encode(texts[id])];
      const control = read.length === 1 && read[0] === id && (plain.length !== 1 || plain[0] !== id);
      if (control || this.eosIds.has(id)) this.#special.set(texts[id], id);
    }
    const controls = new Set([...this.#special.values(), ...this.eosIds]);
    this.#pieces = this.#pieces.map((piece, id) => (controls.has(id) ? NOTHING : piece));
    this.tokenizer = fingerprint(await Promise.all(PROBES.map((text) => this.encode(text))));
  }

  /** Ids of `text`; only with `special` does text make control tokens. */
  encode(text, special = false) {
    return text ? this.#engine.tokenize(text, special) : Promise.resolve([]);
  }

  /** The bytes that an id stands for; none for control tokens. */
  piece(id) {
    return this.#pieces[id] ?? NOTHING;
  }

  /** Ids of a conversation by the model's own template. Contents make no control tokens. */
  async promptIds(messages) {
    const template = this.#engine.getChatTemplate();
    if (!template) return this.#behindBos(await this.encode(messages.map((one) => one.content).join("\n\n")));
    const controls = [...this.#special.keys()].sort((a, b) => b.length - a.length);
    const found = new RegExp(controls.map((text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|") || "(?!)", "g");
    let said = false;
    const marked = messages.map(({ role, content }) => {
      const guarded = content.replace(found, (text) => text[0] + MARK + text.slice(1));
      said ||= guarded !== content;
      return { role, content: guarded };
    });
    const text = this.#rendered(template, marked);
    if (!said) return this.#behindBos(await this.encode(text, true));
    const ids = [];
    let done = 0;
    for (const match of [...text.matchAll(found), { index: text.length, 0: "" }]) {
      ids.push(...(await this.encode(text.slice(done, match.index).replaceAll(MARK, ""))));
      if (match[0]) ids.push(this.#special.get(match[0]));
      done = match.index + match[0].length;
    }
    return this.#behindBos(ids);
  }

  #rendered(template, messages) {
    const texts = new Map([...this.#special].map(([text, id]) => [id, text]));
    const { token_bos: bos, token_eos: eos } = this.#info;
    try {
      return new this.#Template(template).render({
        messages,
        add_generation_prompt: true,
        bos_token: texts.get(bos) ?? "",
        eos_token: texts.get(eos) ?? "",
      });
    } catch (error) {
      throw new UsageError(`The model's chat template cannot be rendered (${error.message}).`);
    }
  }

  #behindBos(ids) {
    const { add_bos_token: wanted, token_bos: bos } = this.#info;
    return wanted && ids[0] !== bos ? [bos, ...ids] : ids;
  }

  /** Make `ids` the sequence; what the KV cache holds of their beginning is not computed again. */
  async open(ids) {
    let kept = 0;
    while (kept < ids.length - 1 && kept < this.#held.length && this.#held[kept] === ids[kept]) kept++;
    if (!kept) await this.#engine.kvClear();
    else if (kept < this.#held.length) await this.#engine.kvRemove(kept, -1);
    this.#held.length = kept;
    this.#queued = ids.slice(kept);
  }

  /** Queue ids; the next step computes them. */
  extend(ids) {
    this.#queued.push(...ids);
  }

  /**
   * Run what is queued. What the model says of the next id: `top` (at least `needs.top` of the likeliest
   * ids with their log-probs, best first), `size`, and with `needs.entropy` the entropy in nats.
   */
  async step(needs) {
    const ids = this.#queued;
    this.#queued = [];
    // A prompt but for its last id is read without logits.
    for (const [part, skipLogits] of [[ids.slice(0, -1), true], [ids.slice(-1), false]]) {
      if (part.length) await this.#engine.decode(part, { skipLogits });
    }
    this.#held.push(...ids);
    const found = await this.#engine.getLogits(needs.entropy ? -1 : Math.max(needs.top, CANDIDATES));
    // wllama sums exponentials of the logits as they are: very large ones are too much for a float.
    if (!(found[0]?.p > 0 && found[0].p <= 1.001)) throw new UsageError("This model's logits are too large for this engine.");
    const top = found.slice(0, Math.max(needs.top, CANDIDATES)).map(({ token, p }) => ({ id: token, logprob: Math.log(p) }));
    top.sort((a, b) => b.logprob - a.logprob || a.id - b.id);
    let entropy = 0;
    if (needs.entropy) for (const { p } of found) if (p > 0) entropy -= p * Math.log(p);
    return { size: this.size, top, entropy };
  }

  /** Free the weights. */
  close() {
    return this.#engine.exit();
  }
}
