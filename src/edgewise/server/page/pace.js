// The bundled pair is tiny and both of its models run in the server's process: the page shows their
// answers at the pace that larger models have, with a cloud that is far away. What is written stays
// as it was. Of the pair every consult waits for the whole way, so this is the most that it takes.
// A draft takes the edge's time when it is shown, and none when it becomes a token.
export const EDGE = 50; // tokens a second
export const CLOUD = 25;
export const DISTANCE = 80; // milliseconds there and back
const LATE = 100; // milliseconds that a busy browser makes up for

// The same chunks, each when it would have come.
export async function* inTime(chunks, answer, signal) {
  let due = performance.now();
  let took = 0; // since the last token
  for await (const chunk of chunks) {
    const token = chunk.edgewise?.token;
    const takes = token ? milliseconds(token, answer) : chunk.edgewise?.pending ? 1000 / EDGE : 0;
    took += takes;
    due = Math.max(due, performance.now() - LATE) + takes;
    if (takes) await until(due, signal);
    const seconds = took / 1000;
    if (token) took = 0;
    yield token ? { ...chunk, edgewise: { ...chunk.edgewise, token: { ...token, seconds, wait: token.wait && seconds } } } : chunk;
  }
}

function milliseconds(token, { mode, tokens, pending }) {
  // The first one is awaited; of later ones the edge is ahead.
  const awaited = token.source === "cloud" || (token.ratio != null && !tokens.length);
  if (!awaited) return pending.some(({ index }) => index === token.index) ? 0 : 1000 / EDGE;
  // A stream goes the way once.
  return 1000 / CLOUD + (mode === "cloud" && tokens.length ? 0 : DISTANCE);
}

function until(due, signal) {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const over = () => (clearTimeout(timer), reject(signal.reason));
    const timer = setTimeout(() => (signal.removeEventListener("abort", over), resolve()), due - performance.now());
    signal.addEventListener("abort", over, { once: true });
  });
}
