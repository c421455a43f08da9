// What is known of the link to the cloud: whether it works, and how long consults take (loop/health.py).

const FAILURES = 3;
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 30;
const RECENT = 16;
const ENOUGH = 3;
const MANY = 16;

/** The circuit breaker. Half open, one probe goes. `now` returns seconds. */
export class Breaker {
  #now;
  #failures = 0;
  #pause = FIRST_PAUSE;
  #until = null;
  #probing = false;

  constructor(now = () => performance.now() / 1000) {
    this.#now = now;
  }

  /** Whether consults are paused. */
  get isOpen() {
    return this.#until !== null;
  }

  /** Whether a consult may go now; when a pause is over, one probe may. */
  allow() {
    if (this.#until === null) return true;
    if (this.#probing || this.#now() < this.#until) return false;
    this.#probing = true;
    return true;
  }

  succeeded() {
    this.#failures = 0;
    this.#pause = FIRST_PAUSE;
    this.#until = null;
    this.#probing = false;
  }

  /** Another may go: the probe says nothing of the link. */
  probeCancelled() {
    this.#probing = false;
  }

  /**
   * `silent` where the answer waited until the deadline: one such failure opens the breaker.
   * Only the `probe` itself ends that and doubles the pause: others were sent before it.
   */
  failed({ silent = false, probe = false } = {}) {
    this.#failures += 1;
    if (probe && this.#probing) {
      this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
      this.#probing = false;
      this.#until = this.#now() + this.#pause;
    } else if (this.#failures >= FAILURES) this.#until = this.#now() + this.#pause;
    else if (silent && this.#until === null) this.#until = this.#now();
  }
}

/** How long consults take, seconds; an answer's first ones are counted apart. */
export class Latency {
  timeouts = 0;
  /** Seconds a prompt token that a first consult computed; null before one was measured. */
  reading = null;
  #recent = { true: [], false: [] };

  answered(seconds, { first, engineSeconds = null, computed = null, prefix = 0 }) {
    this.timeouts = 0;
    this.#keep(first, seconds);
    const tokens = computed ?? prefix;
    if (first && tokens >= MANY) {
      const each = (engineSeconds || seconds) / tokens;
      this.reading = this.reading === null ? each : this.reading + (each - this.reading) / 8;
    }
  }

  timedOut(deadline, { first }) {
    this.timeouts += 1;
    this.#keep(first, deadline);
  }

  /** The median of the recent consults; null before there are enough. */
  median(first) {
    const sorted = [...this.#recent[first]].sort((a, b) => a - b);
    if (sorted.length < ENOUGH) return null;
    const middle = (sorted.length - 1) / 2;
    return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
  }

  #keep(first, seconds) {
    const recent = this.#recent[first];
    recent.push(seconds);
    if (recent.length > RECENT) recent.shift();
  }
}
