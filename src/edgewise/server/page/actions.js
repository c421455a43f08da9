// What a reader can do. One at a time writes: `state.underWay`.
import { Answer } from "./answer.js";
import { ask, askEdge, isGreedy, modelOf, refresh } from "./api.js";
import { Conversation, MODES, Turn } from "./conversation.js";
import { inTime } from "./pace.js";
import { changed, redraw, state } from "./state.js";

// Who is asked: the cloud alone cannot be, where nothing may leave.
export function modesNow() {
  const { conversation, settings, health } = state;
  if (settings.mode === "edge") return ["edge"];
  if (conversation.local || health?.cloud === null) return ["pair"];
  return settings.mode === "beside" ? MODES : [settings.mode];
}

export async function send(prompt) {
  if (state.underWay) return;
  const turn = new Turn(prompt, { local: state.conversation.local });
  state.conversation.turns.push(turn);
  await answerTurn(turn);
}

// Answers a question once more, by who is chosen now; what follows it goes.
export async function regenerate(turn, prompt = turn.prompt) {
  const { conversation } = state;
  // What is still drawn may be gone.
  if (state.underWay || !conversation.turns.includes(turn)) return;
  state.token = null;
  const again = new Turn(prompt, { local: conversation.local });
  conversation.turns[conversation.dropFrom(turn)] = again;
  await answerTurn(again);
}

async function answerTurn(turn) {
  // A new chat may begin meanwhile.
  const { conversation } = state;
  const underWay = new AbortController();
  state.underWay = underWay;
  const modes = modesNow();
  // Side by side all draw alike, so that luck tells no two of them apart.
  const seed = modes.length > 1 ? crypto.getRandomValues(new Uint32Array(1))[0] : null;
  for (const mode of modes) {
    const model = modelOf(mode);
    const paced = Boolean(state.health?.bundled) && state.settings.paced;
    turn.answers[mode] = new Answer(mode, model, { greedy: isGreedy(), paced, seed });
  }
  changed();
  const writing = turn.modes.map(async (mode) => {
    const answer = turn.answers[mode];
    await write(answer, conversation.messages(mode, turn), underWay.signal);
    if (answer.local) turn.local = conversation.local = true;
  });
  await Promise.all(writing);
  // A new chat may have begun since.
  if (state.underWay === underWay) state.underWay = null;
  changed();
  refresh();
}

const clouds = new WeakMap(); // answer -> AbortController of the reply that may ask the cloud

// Takes every chunk, and settles the answer. What was said stays, whatever happens.
async function write(answer, messages, signal) {
  const cloud = new AbortController();
  clouds.set(answer, cloud);
  const either = AbortSignal.any([signal, cloud.signal]);
  try {
    await take(answer, ask(answer, messages, either), either).catch((error) => {
      if (signal.aborted || !cloud.signal.aborted) throw error;
      return take(answer, restOf(answer, signal), signal);
    });
    if (answer.finish) answer.settle("done");
    else answer.settle("failed", "The answer broke off before its end; what was written stays.");
  } catch (error) {
    if (error.name === "AbortError") answer.settle("stopped");
    else answer.settle("failed", error.message);
  }
  changed();
}

async function take(answer, chunks, signal) {
  for await (const chunk of answer.paced ? inTime(chunks, answer, signal) : chunks) {
    answer.take(chunk);
    changed();
  }
}

export const canDisconnect = (answer) => answer.busy && answer.promptIds !== null && answer.cut === null && answer.mode !== "edge" && Boolean(state.health?.cloud);

// Cuts the running answers off from the cloud: the edge writes the rest, after the tokens so far.
export function disconnect() {
  for (const answer of Object.values(state.conversation.turns.at(-1)?.answers ?? {}).filter(canDisconnect)) {
    answer.cut = answer.tokens.length;
    answer.pending = [];
    clouds.get(answer).abort();
  }
  changed();
}

async function* restOf(answer, signal) {
  const ids = [...answer.promptIds, ...answer.tokens.map((token) => token.id)];
  for await (const chunk of askEdge(ids, answer.cut, signal)) {
    const [choice] = chunk.choices ?? [];
    const token = chunk.edgewise?.token;
    // What it took is not what the whole answer took.
    yield {
      error: chunk.error,
      choices: choice && [{ delta: { content: choice.text }, finish_reason: choice.finish_reason }],
      edgewise: token && { token: { ...token, index: answer.cut + token.index } },
    };
  }
}

export function stop() {
  state.underWay?.abort();
}

export function newChat() {
  stop();
  Object.assign(state, { conversation: new Conversation(), underWay: null, token: null });
  changed();
}

export function set(name, value) {
  state.settings[name] = value;
  changed();
}

// Shows a token ({answer, number, pinned}) in the panel, or none.
export function show(token) {
  const { answer, number, pinned } = state.token ?? {};
  if (answer === token?.answer && number === token?.number && pinned === token?.pinned) return;
  state.token = token;
  redraw();
}
