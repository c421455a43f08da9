// What stands around a token, as routers read it (routers/text.py): its form and its place.
// Characters are code points, and their classes are Python's.

export const TAIL = 32;
const words = (text) => new Set(text.split(" "));
const COPULAS = words("am are be been is was were");
const ARTICLES = words("a an the");
const PREPOSITIONS = words("as at by for from in into of on than to with");
const OPENING = new Set(["(", "[", "{", '"', "“"]);
const SENTENCE_ENDS = [".", "!", "?", "\n"];

const DIGIT = /[\p{Nd}²³¹፩-፱᧚⁰⁴-⁹₀-₉①-⑨⑴-⑼⒈-⒐⓪⓵-⓽⓿❶-❾➀-➈➊-➒]/u;
const UPPER = /\p{Uppercase}/u;
const LETTER = /\p{L}/u;
const ALNUM = /[\p{L}\p{N}]/u;
const BLANK = "[\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const SPACE = new RegExp(BLANK, "u");
const LEADING = new RegExp(`^${BLANK}+`, "u");
const TRAILING = new RegExp(`${BLANK}+$`, "u");

const is = (pattern, character) => character !== undefined && pattern.test(character);

/** The 25 columns of `text` for what the edge would write here. `before` is the answer's text so far. */
export function textOf({ prompt, answer, proposed, second, ends, piece, tail }) {
  const inPrompt = new Set(prompt);
  return [
    ...formOf([...piece]),
    ends,
    inPrompt.has(proposed),
    inPrompt.has(second),
    answer.includes(proposed),
    answer.length > 0 && inPrompt.has(answer.at(-1)),
    ...beforeOf(piece, tail),
    answer.length === 0,
    ...placeOf(answer.length, [...piece], [...tail]),
  ].map(Number);
}

function formOf(characters) {
  const any = (pattern) => characters.some((one) => pattern.test(one));
  return [any(DIGIT), any(UPPER), any(LETTER), is(SPACE, characters[0]), characters.includes("\n")];
}

function beforeOf(piece, tail) {
  const last = [...tail].at(-1);
  const kept = tail.replace(TRAILING, "");
  const inside = is(ALNUM, [...piece][0]) && is(ALNUM, last);
  const mark = [...kept].at(-1);
  const word = inside ? "" : kept.split(" ").at(-1).split("\n").at(-1).toLowerCase();
  return [
    !inside && is(ALNUM, [...piece.replace(LEADING, "")][0]),
    inside,
    mark === ":",
    mark === ",",
    OPENING.has(mark),
    is(DIGIT, mark),
    is(UPPER, mark),
    COPULAS.has(word),
    ARTICLES.has(word),
    PREPOSITIONS.has(word),
  ];
}

function placeOf(before, piece, tail) {
  const sentence = tail.length - 1 - Math.max(...SENTENCE_ENDS.map((end) => tail.lastIndexOf(end)));
  const line = tail.length - 1 - tail.lastIndexOf("\n");
  return [before, sentence, line, piece.length].map(Math.log1p);
}
