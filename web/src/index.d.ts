export interface Message {
  role: string;
  content: string;
}
export interface Candidate {
  id: number;
  logprob: number;
}
export interface Step {
  size: number;
  top: Candidate[];
  entropy: number;
}
export interface Needs {
  top: number;
  entropy: boolean;
  text: boolean;
}
export interface Router {
  needs: Needs;
  score(step: Step): number;
}
export interface TokenEvent {
  type: "token";
  index: number;
  id: number;
  text: string;
  source: "edge" | "cloud";
  reason: string;
  score: number | null;
  threshold: number | null;
  logprob: number | null;
  edge: Candidate[];
  cloud: Candidate[];
}
export interface ConsultEvent {
  type: "consult";
  index: number;
  outcome: string;
  requested: number;
  answered: number;
  seconds: number;
  message?: string;
}
export interface FinishedEvent {
  type: "finished";
  text: string;
  finishReason: "stop" | "length" | "stopped";
  usage: Record<"promptTokens" | "edge" | "cloud" | "corrections" | "calls" | "failed" | "wasted", number> & { repeats: boolean };
  cloudShare: number;
  budget: Budget;
}
export interface Left {
  kind: "open" | "prefetch" | "consult" | "cancel" | "close";
  ids: number;
  bytes: number;
}
export interface Vocabulary {
  tokenizer: string;
  size: number;
  eosIds: Set<number>;
}
export class Edge implements Vocabulary {
  static load(file: Blob, engine: { Wllama: unknown; Template: unknown; wasm: string }, options?: { context?: number }): Promise<Edge>;
  tokenizer: string;
  size: number;
  eosIds: Set<number>;
  context: number;
  encode(text: string, special?: boolean): Promise<number[]>;
  promptIds(messages: Message[]): Promise<number[]>;
  piece(id: number): Uint8Array;
  open(ids: number[]): Promise<void>;
  extend(ids: number[]): void;
  step(needs: Needs): Promise<Step>;
  close(): Promise<void>;
}
export class MaxProb implements Router {
  needs: Needs;
  score(step: Step): number;
}
export class Entropy extends MaxProb {}
export class Mlp extends MaxProb {
  constructor(card: object, weights: ArrayBuffer);
}
export function routerNamed(name: "max-prob" | "entropy"): Router;
export class Budget {
  readonly bucket: number;
  readonly charged: number;
}
export interface Rules {
  threshold?: number;
  cloudShare?: number | null;
  maxCloudTokens?: number | null;
  span?: number;
  deadline?: number | null;
}
export class Policy {
  constructor(rules?: Rules);
  readonly asks: boolean;
}
export class Breaker {}
export class Latency {}
export class CloudError extends Error {
  reason: string;
  retryAfter: number | null;
  requestId: string | null;
}
export class UsageError extends Error {}
export class Gateway {
  constructor(url: string, vocabulary: Vocabulary, options?: { key?: string; onSent?: (left: Left) => void });
  readonly model: string;
  readonly allowed: boolean;
  open(): Promise<void>;
  reconnect(): void;
  disconnect(): void;
  close(): void;
}
export interface Options {
  edge: Edge;
  router: Router;
  policy: Policy;
  gateway?: Gateway | null;
  maxTokens?: number;
  budget?: Budget;
  breaker?: Breaker;
  latency?: Latency;
  signal?: AbortSignal;
}
export function stream(prompt: number[], options: Options): AsyncGenerator<TokenEvent | ConsultEvent | FinishedEvent>;
export function ownThresholds(edge: Edge, router: Router, onPart?: (done: number) => void, signal?: AbortSignal): Promise<[number, number][]>;
export function thresholdAt(thresholds: [number, number][], share: number): number;
