// What a server or the browser's storage says, before it is believed: the types of the values that
// the page reads. Each says whether a value is one; other fields may be anything.
const text = (value) => typeof value === "string";
const flag = (value) => typeof value === "boolean";
const number = Number.isFinite;
const maybe = (is) => (value) => value === null || value === undefined || is(value);
const list = (is) => (value) => Array.isArray(value) && value.every(is);
const record = (fields) => {
  const entries = Object.entries(fields);
  return (value) => value !== null && typeof value === "object" && entries.every(([name, is]) => is(value[name]));
};
const counts = (...names) => Object.fromEntries(names.map((name) => [name, number]));

const candidates = maybe(list(record({ token: text, logprob: maybe(number), bytes: maybe(list(number)) })));
const token = {
  ...counts("index", "id", "seconds", "wait"),
  ...{ text, source: text, reason: text, score: maybe(number), threshold: maybe(number), ratio: maybe(number) },
  ...{ edge: candidates, cloud: candidates, draft: maybe(record({ id: number, text })) },
};
const timing = record(counts("ttft", "total"));
const usage = record({
  edgewise: record({
    ...counts("cloud_share", "cloud_calls"),
    ...{ cloud_prompt_cached: maybe(number), cloud_prompt_computed: maybe(number), cloud_completion_tokens: maybe(number) },
    sent: maybe(record({ bytes: maybe(number) })),
    tiers: maybe(list(record({ cloud: text, ...counts("wanted", "calls", "wrote") }))),
    cost: maybe(record({ ...counts("paid", "alone", "saved"), currency: text })),
  }),
});

export const isChunk = record({
  id: maybe(text),
  error: maybe(record({ message: maybe(text) })),
  choices: maybe(list(record({ delta: maybe(record({ content: maybe(text) })), text: maybe(text), finish_reason: maybe(text) }))),
  usage: maybe(usage),
  edgewise: maybe(
    record({
      token: maybe(record(token)),
      pending: maybe(record({ index: number, text })),
      rolled_back: maybe(record({ index: number })),
      timing: maybe(timing),
      prompt_token_ids: maybe(list(number)),
    }),
  ),
});

const answer = record({
  ...{ mode: text, model: text, phase: text, tail: text, problem: text, finish: maybe(text), local: flag },
  ...{ greedy: maybe(flag), paced: maybe(flag), cut: maybe(number) },
  ...{ usage: maybe(usage), timing: maybe(timing), seconds: maybe(number) },
  tokens: list(record({ ...token, shown: text, kind: text })),
});

export const isConversation = record({
  local: flag,
  turns: list(record({ prompt: text, local: flag, answers: (found) => record({})(found) && Object.values(found).every(answer) })),
});

export const isHealth = record({
  ...{ edge: text, cloud: maybe(text), edge_parameters: maybe(number), cloud_parameters: maybe(number) },
  ...{ cloud_share: maybe(number), threshold: maybe(number), verify: maybe(text), temperature: maybe(number),
    top_k: maybe(number), top_p: maybe(number), min_p: maybe(number) },
});

export const isSent = record({
  data: list(record({ conversation: text, answer: text, host: maybe(text), ...counts("at", "consults", "prefetches", "bytes", "tokens") })),
});

export const isExamples = list(record({ title: text, question: text, right: text, edge: text }));
