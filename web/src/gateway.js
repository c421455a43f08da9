// The large model behind a gateway: one WebSocket, only new ids travel (cloud/gateway_link.py).
// A link that breaks, or cannot be made, is tried again with growing random pauses, as long as a consult's
// deadline allows.
import { CloudError, protocolError, timedOut, unavailable } from "./errors.js";
import { KEY_PROTOCOL, Ledger, PATH, SUBPROTOCOL, VERSION, completionOf, frames, fromGateway } from "./protocol.js";

const OPEN_SECONDS = 5;
const FIRST_PAUSE = 0.05;
const LONGEST_PAUSE = 1;
const TRIES = 3;
const TOP = 5;
const PREFETCHED = 16;
const MAX_MESSAGE = 500;
const REASONS = new Set(["unavailable", "timeout", "refused", "rejected", "protocol"]);

class Broken extends Error {}

const later = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

/** A connection as a browser makes it; `onclose` is given the close event, `onmessage` bytes. */
function browserSocket(url, protocols) {
  const socket = new WebSocket(url, protocols);
  socket.binaryType = "arraybuffer";
  return socket;
}

export class Gateway {
  /**
   * @param {string} url of the gateway, http(s) or ws(s)
   * @param {{tokenizer: string, size: number, eosIds: Set<number>}} vocabulary the edge's
   * @param {object} options `key`; `onSent` is called with what leaves; the rest is for tests
   */
  constructor(url, vocabulary, { key = "", onSent = () => {}, connect = browserSocket, now, firstAsk } = {}) {
    this.#url = new URL(PATH, url).href.replace(/^http/, "ws");
    this.#protocols = key ? [SUBPROTOCOL, KEY_PROTOCOL + key] : [SUBPROTOCOL];
    this.#vocabulary = vocabulary;
    this.#onSent = onSent;
    this.#connect = connect;
    this.#now = now ?? (() => performance.now() / 1000);
    this.#count = firstAsk ?? Math.floor(Math.random() * (1 << 16));
  }

  /** The name of the model behind it, once a session was opened. */
  model = "";
  #url;
  #protocols;
  #vocabulary;
  #onSent;
  #connect;
  #now;
  #count;
  #socket = null;
  #session = "";
  #ledger = new Ledger();
  #waiting = new Map();
  #turn = Promise.resolve();
  #prefetched = [];
  #allowed = true;
  #asks = new Set();

  /** Whether it may be asked: until `disconnect`, and again after `reconnect`. */
  get allowed() {
    return this.#allowed;
  }

  reconnect() {
    this.#allowed = true;
  }

  /** Close the connection and give up what was asked; nothing is sent until `reconnect`. */
  disconnect() {
    this.close();
    this.#allowed = false;
    for (const fail of this.#asks) fail(unavailable("The cloud is disconnected."));
  }

  /** Open the session, if it is not open. Throws a `CloudError`. */
  open() {
    return this.#inTurn(() => this.#connected());
  }

  /**
   * The completion for `n` tokens after `ids`, greedily. Throws a `CloudError`.
   * @param {number[]} ids @param {{n?: number, deadline: number, signal?: AbortSignal}} options seconds
   */
  async ask(ids, { n = 1, deadline, signal }) {
    if (!ids.length) throw new CloudError("rejected", "A consult needs at least one token id.");
    this.#prefetched = [...ids];
    const end = this.#now() + deadline;
    const given = { up: false, ask: null, waiting: null };
    let timer, giveUp;
    const over = new Promise((_, fail) => {
      giveUp = fail;
      timer = setTimeout(() => fail(timedOut(`No answer within ${deadline} s.`)), 1000 * deadline);
    });
    const stopped = () => giveUp(unavailable("The answer was stopped."));
    signal?.addEventListener("abort", stopped);
    this.#asks.add(giveUp);
    try {
      return await Promise.race([this.#tried([...ids], n, end, given), over]);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stopped);
      this.#asks.delete(giveUp);
      given.up = true;
      // Spare the engine the rest: the gateway answers to nobody now.
      if (given.waiting?.has(given.ask)) {
        given.waiting.delete(given.ask);
        if (given.waiting === this.#waiting) this.#post(frames.cancel(given.ask), { kind: "cancel" });
      }
    }
  }

  /** Give the gateway ids ahead of a consult: the prompt at once, then sixteen at a time. Best effort. */
  prefetch(ids) {
    let shared = 0;
    while (shared < ids.length && this.#prefetched[shared] === ids[shared]) shared++;
    const fresh = ids.length - shared;
    if (!this.#allowed || !fresh || (this.#prefetched.length && fresh < PREFETCHED)) return;
    this.#prefetched = [...ids];
    const wanted = this.#prefetched;
    this.#inTurn(async () => {
      await this.#connected();
      const held = this.#ledger.ids.length;
      const [position, added] = this.#put(wanted);
      if (added.length || position < held) {
        this.#send(frames.push(position, added, this.#ledger.check), { kind: "prefetch", ids: added.length });
      }
    }).catch((error) => {
      // What is wrong shows at the next consult; a bug must not be hidden.
      if (!(error instanceof CloudError || error instanceof Broken)) throw error;
    });
  }

  /** An answer ends, or another conversation begins: the next prefetch goes at once. */
  forgetPrefetched() {
    this.#prefetched = [];
  }

  /** Let the gateway drop the session, and hang up. */
  close() {
    if (this.#socket) this.#post(frames.close(), { kind: "close" });
    this.#hangUp(new Broken());
    this.#session = "";
    this.#ledger = new Ledger();
  }

  async #tried(ids, n, end, given) {
    let pause = FIRST_PAUSE;
    for (let forgotten = 0; forgotten < TRIES && !given.up; ) {
      try {
        const reply = await this.#reply(ids, n, end, given);
        if (reply.kind === "reply") {
          const { size, eosIds } = this.#vocabulary;
          return completionOf(reply, { n, prefix: ids.length, size, eosIds });
        }
        this.#ledger = new Ledger();
        forgotten += 1;
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        const left = end - this.#now();
        if (left < 2 * FIRST_PAUSE && error.cause) throw error.cause;
        await later(Math.min(Math.random() * pause, Math.max(left / 2, FIRST_PAUSE)));
        pause = Math.min(2 * pause, LONGEST_PAUSE);
      }
    }
    throw protocolError("The gateway keeps losing the session's prefix.");
  }

  async #reply(ids, n, end, given) {
    const reply = await this.#inTurn(async () => {
      await this.#connected().catch((error) => {
        throw this.#allowed && error.reason === "unavailable" ? new Broken("", { cause: error }) : error;
      });
      if (given.up) throw protocolError("The consult was given up.");
      const [position, added] = this.#put(ids);
      this.#count = (this.#count + 1) % 2 ** 32;
      const ask = this.#count;
      const deadline = Math.min(600000, Math.max(1, Math.trunc(1000 * (end - this.#now()))));
      const waiting = this.#waiting;
      const arrives = new Promise((done, fail) => waiting.set(ask, { done, fail }));
      arrives.catch(() => {});
      Object.assign(given, { ask, waiting });
      const frame = frames.ask({ ask, position, ids: added, check: this.#ledger.check, n, deadline, top: TOP });
      this.#send(frame, { kind: "consult", ids: added.length });
      // In an object: the turn is over, though the reply has not come.
      return { arrives };
    });
    return reply.arrives;
  }

  /** One after the other, in the order of the calls: frames travel so. */
  #inTurn(work) {
    const done = this.#turn.then(work);
    this.#turn = done.catch(() => {});
    return done;
  }

  #put(ids) {
    const position = this.#ledger.shared(ids);
    const added = ids.slice(position);
    this.#ledger.put(position, added);
    return [position, added];
  }

  async #connected() {
    if (!this.#allowed) throw unavailable("The cloud is disconnected.");
    if (this.#socket) return;
    const socket = await this.#opened();
    if (!this.#allowed) {
      socket.close();
      throw unavailable("The cloud is disconnected.");
    }
    this.#socket = socket;
    const waiting = (this.#waiting = new Map());
    socket.onmessage = (event) => this.#take(event.data, waiting);
    socket.onerror = null;
    socket.onclose = () => this.#broken(socket, waiting, new Broken());
  }

  /** A connection with an open session. */
  #opened() {
    return new Promise((done, fail) => {
      const socket = this.#connect(this.#url, this.#protocols);
      const refuse = (error) => {
        clearTimeout(timer);
        socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
        socket.close();
        fail(error);
      };
      const timer = setTimeout(() => refuse(unavailable("The gateway does not answer.")), 1000 * OPEN_SECONDS);
      // A browser does not tell a page why; a request to /v1/models does.
      socket.onclose = socket.onerror = () => refuse(unavailable("The gateway cannot be reached, or refused."));
      socket.onopen = () => {
        if (!this.#allowed) return refuse(unavailable("The cloud is disconnected."));
        const frame = frames.open(this.#vocabulary.tokenizer, this.#session);
        this.#onSent({ kind: "open", ids: 0, bytes: frame.length });
        socket.send(frame);
      };
      socket.onmessage = ({ data }) => {
        try {
          this.#resume(frameOf(data));
          clearTimeout(timer);
          done(socket);
        } catch (error) {
          refuse(error);
        }
      };
    });
  }

  /** What the gateway still holds of the session; the rest is sent again. */
  #resume(frame) {
    if (frame.kind === "failed") throw refusal(frame);
    if (frame.kind !== "opened" || frame.version !== VERSION) throw protocolError("The gateway did not open the session.");
    if (this.model && frame.model !== this.model) {
      throw new CloudError("rejected", "The gateway serves another model than before; load the page again.");
    }
    this.model = frame.model;
    this.#session = frame.session;
    const kept = frame.known <= this.#ledger.ids.length ? frame.known : 0;
    this.#ledger.put(kept, []);
    if (this.#ledger.check !== frame.check) this.#ledger = new Ledger();
  }

  #take(data, waiting) {
    const socket = this.#socket;
    try {
      const frame = frameOf(data);
      if (frame.kind === "opened") throw protocolError("The gateway opened a session twice.");
      if (frame.ask === null) {
        if (frame.kind === "failed") throw refusal(frame);
        this.#ledger = new Ledger();
        return;
      }
      const reply = waiting.get(frame.ask);
      waiting.delete(frame.ask); // none where it came too late
      if (frame.kind === "failed") reply?.fail(refusal(frame));
      else reply?.done(frame);
    } catch (error) {
      this.#broken(socket, waiting, error);
      socket?.close();
    }
  }

  #broken(socket, waiting, problem) {
    if (this.#socket === socket) this.#socket = null;
    for (const { fail } of waiting.values()) fail(problem);
    waiting.clear();
  }

  #hangUp(problem) {
    const socket = this.#socket;
    this.#broken(socket, this.#waiting, problem);
    socket?.close();
  }

  #send(frame, what) {
    if (!this.#socket || this.#socket.readyState > 1) throw new Broken();
    this.#onSent({ ids: 0, ...what, bytes: frame.length });
    this.#socket.send(frame);
  }

  /** Best effort: the consult is over either way. */
  #post(frame, what) {
    if (this.#socket?.readyState === 1) this.#send(frame, what);
  }
}

function frameOf(data) {
  if (typeof data === "string") throw protocolError("The gateway sent a text message.");
  return fromGateway(new Uint8Array(data));
}

function refusal({ reason, message, retryAfter, requestId }) {
  const plain = message.slice(0, MAX_MESSAGE).replace(/\p{C}/gu, " ");
  const known = REASONS.has(reason) ? reason : reason === "vocabulary" ? "rejected" : "protocol";
  return new CloudError(known, plain, { retryAfter, requestId });
}
