// From a stream of chunks to an answer, the same for a server's reply and for a recording.
import { isChunk } from "./shapes.js";
import { changed } from "./state.js";

// The JSON objects of a stream of server-sent events.
export async function* chunksOf(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(brokeOff);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield read(line.slice(6));
      }
    }
  } finally {
    // Else the server would go on writing for nobody; one that broke off has said so already.
    reader.cancel().catch(() => {});
  }
}

function brokeOff(error) {
  if (error.name === "AbortError") throw error;
  throw new Error("The connection to the server broke off; what was written stays.", { cause: error });
}

function read(text) {
  try {
    const chunk = JSON.parse(text);
    if (isChunk(chunk)) return chunk;
  } catch {
    // It is no chunk either.
  }
  throw new Error("The server sent something else than an answer; what was written stays.");
}

// The chunks that `model` wrote in a trace ([[seconds, chunk], ...]), at their times divided by
// `speed`; all at once where that is Infinity.
export async function* played(trace, model, { signal, speed = 1 } = {}) {
  const began = performance.now();
  for (const [seconds, chunk] of trace.answers[model]) {
    const left = (1000 * seconds) / speed - (performance.now() - began);
    if (left > 1) await pause(left, signal);
    signal?.throwIfAborted();
    yield chunk;
  }
}

function pause(left, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, left);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

// Takes every chunk, and settles the answer. What was said stays, whatever happens.
export async function feed(answer, chunks) {
  try {
    for await (const chunk of chunks) {
      answer.take(chunk);
      changed();
    }
    if (answer.finish) answer.settle("done");
    else answer.settle("failed", "The answer broke off before its end; what was written stays.");
  } catch (error) {
    if (error.name === "AbortError") answer.settle("stopped");
    else answer.settle("failed", error.message);
  }
  changed();
}
