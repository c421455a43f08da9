// What a reader can do. One at a time writes: `state.underWay`.
import { Answer } from "./answer.js";
import { ask, askEdge, modelOf, readTrace, refresh } from "./api.js";
import { Conversation, Turn } from "./conversation.js";
import { chunksOf, feed, played } from "./feed.js";
import { changed, redraw, state } from "./state.js";
import { MODES } from "./words.js";

// The models that every trace has.
export const RECORDED = { pair: "edgewise@0.05", edge: "edgewise:edge", cloud: "edgewise:cloud" };

const modesNow = () => (state.settings.mode === "beside" ? MODES : [state.settings.mode]);

export async function send(prompt) {
  if (state.underWay) return;
  const turn = new Turn(prompt, { local: state.conversation.local });
  state.conversation.turns.push(turn);
  await answerTurn(turn);
}

// Plays a recording, by its entry in traces/index.json, as if it were asked.
export async function play({ name, prompt }) {
  if (state.underWay) return;
  const turn = new Turn(prompt, { recording: name });
  state.conversation.turns.push(turn);
  await playTurn(turn);
}

// Answers a question once more, by who is chosen now; what follows it goes. A recording is played
// again, unless it is changed or asked `live`. The turn in its place, or null where nothing was done.
export async function regenerate(turn, { prompt = turn.prompt, live = false } = {}) {
  const { conversation } = state;
  // What is still drawn may be gone.
  if (state.underWay || !conversation.turns.includes(turn)) return null;
  const recording = live || prompt !== turn.prompt ? null : turn.recording;
  state.token = null;
  const again = new Turn(prompt, { local: conversation.local && !recording, recording });
  conversation.turns[conversation.dropFrom(turn)] = again;
  await (recording ? playTurn(again) : answerTurn(again));
  return again;
}

async function answerTurn(turn) {
  // A new chat may begin meanwhile.
  const { conversation } = state;
  await writing(turn, false, async (answer, signal) => {
    const messages = conversation.messages(answer.mode, turn);
    const cloud = new AbortController();
    clouds.set(answer, cloud);
    await feed(answer, replyTo(answer.model, messages, AbortSignal.any([signal, cloud.signal])));
    if (cloud.signal.aborted && !signal.aborted) await feed(answer, restOf(answer, signal));
    if (answer.local) turn.local = conversation.local = true;
  });
  refresh();
}

async function playTurn(turn) {
  await writing(turn, true, (answer, signal) => feed(answer, recorded(turn.recording, answer.model, signal)));
}

async function* recorded(name, model, signal) {
  yield* played(await readTrace(name, signal), model, { signal });
}

async function* replyTo(model, messages, signal) {
  yield* chunksOf(await ask(model, messages, signal));
}

const clouds = new WeakMap(); // answer -> AbortController of the reply that may ask the cloud

// Cuts a running answer off from the cloud: the edge writes the rest, behind the tokens so far.
export function unplug(answer) {
  answer.cut = answer.tokens.length;
  clouds.get(answer)?.abort();
}

async function* restOf(answer, signal) {
  const ids = [...answer.promptIds, ...answer.tokens.map((token) => token.id)];
  for await (const chunk of chunksOf(await askEdge(answer.model, ids, answer.cut, signal))) {
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

// Has every mode's answer written by `write(answer, signal)`.
async function writing(turn, recorded, write) {
  const underWay = new AbortController();
  state.underWay = underWay;
  for (const mode of modesNow()) turn.answers[mode] = new Answer(mode, recorded ? RECORDED[mode] : modelOf(mode), { recorded });
  changed();
  await Promise.all(turn.modes.map((mode) => write(turn.answers[mode], underWay.signal)));
  // A new chat may have begun since.
  if (state.underWay === underWay) state.underWay = null;
  changed();
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
