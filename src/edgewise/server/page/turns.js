// Questions and their answers, and the scrolling.
import { regenerate } from "./actions.js";
import { answerView } from "./answer_view.js";
import { byId, composes, el, fill } from "./dom.js";
import { redraw, state } from "./state.js";
import { bare, isWrapped, wrapped } from "./wording.js";

const NEAR = 48; // pixels

const views = new Map(); // Turn -> its view
const main = document.querySelector("main");
let atEnd = true;
let top = 0; // where it was last seen
let last = null; // the last turn that was seen

export function drawTurns() {
  const { turns } = state.conversation;
  for (const turn of views.keys()) if (!turns.includes(turn)) views.delete(turn);
  for (const turn of turns) if (!views.has(turn)) views.set(turn, turnView(turn));
  const nodes = turns.map((turn) => views.get(turn).node);
  const place = byId("turns");
  if (nodes.length !== place.children.length || nodes.some((node, at) => node !== place.children[at])) place.replaceChildren(...nodes);
  for (const turn of turns) views.get(turn).draw();
  scroll(turns.at(-1) ?? null);
}

// The conversation scrolls to its end while it grows, if the reader is there; the first screen is
// read from its top.
function scroll(turn) {
  const before = last;
  last = turn;
  if (turn !== before) atEnd = true;
  if (turn && atEnd) main.scrollTop = main.scrollHeight;
  else if (turn !== before) main.scrollTop = 0;
  byId("to-end").hidden = !turn || atEnd;
  // What began it may be gone: a button of the first screen, or of the answer before.
  if (turn && turn !== before && !turn.restored && focusIsLost()) byId(turn.id).focus({ preventScroll: true });
}

const focusIsLost = () => document.activeElement === document.body || !document.activeElement.checkVisibility();

// Who goes up by a pixel leaves the end: a finger goes up by few between two draws. Growth alone
// does not leave it, nor does what is so short now that it cannot be scrolled as far.
main.addEventListener("scroll", () => {
  const { scrollHeight, scrollTop, clientHeight } = main;
  const left = scrollHeight - scrollTop - clientHeight;
  atEnd = scrollTop < top ? left <= 1 : atEnd || left < NEAR;
  top = scrollTop;
  byId("to-end").hidden = !last || atEnd;
});

// The button goes, so the focus goes to what was scrolled.
byId("to-end").addEventListener("click", () => {
  main.focus({ preventScroll: true });
  main.scrollTop = main.scrollHeight;
});

function turnView(turn) {
  let editing = false;
  const question = el("div", { class: "question" });
  const edit = el("button", { type: "button", onclick: () => toggle(true) }, "Edit");
  const again = el("button", { type: "button", onclick: () => regenerate(turn) }, "Ask again");
  const actions = el("div", { class: "actions", "aria-live": "off" }, edit, again);
  const answers = el("div", { class: "answers" });
  const node = el("section", { id: turn.id, class: "turn", tabindex: -1, "aria-label": "Question and answer" }, question, actions, answers);
  const shown = {};

  function toggle(open) {
    editing = open;
    draw();
    if (open) question.querySelector("textarea").focus();
    else edit.focus();
  }

  function draw() {
    const local = turn.local ? el("span", { class: "badge" }, "kept here") : null;
    fill(question, [editing, turn.local], () => (editing ? [editor(turn, () => toggle(false))] : [el("h2", { dir: "auto" }, bare(turn.prompt)), local]));
    actions.hidden = editing;
    actions.classList.toggle("away", Boolean(state.underWay));
    for (const button of [edit, again]) button.disabled = Boolean(state.underWay);
    for (const button of question.querySelectorAll("[type=submit]")) button.disabled = Boolean(state.underWay);
    for (const mode of turn.modes.filter((one) => !shown[one])) {
      shown[mode] = answerView(turn, turn.answers[mode]);
      answers.append(shown[mode].node);
    }
    node.classList.toggle("several", turn.modes.length > 1);
    for (const view of Object.values(shown)) view.draw();
  }

  return { node, draw };
}

function editor(turn, close) {
  const field = el("textarea", { dir: "auto", rows: 3, "aria-label": "Question" });
  field.value = bare(turn.prompt);
  const submit = (event) => {
    event.preventDefault();
    const question = field.value.trim();
    if (question) regenerate(turn, isWrapped(turn.prompt) ? wrapped(question) : question);
  };
  const keys = (event) => {
    if (event.key !== "Escape") onEnter(submit)(event);
    else if (!composes(event)) {
      event.stopPropagation();
      close();
    }
  };
  field.addEventListener("keydown", keys);
  return el(
    "form",
    { "aria-label": "Edit the question", onsubmit: submit },
    field,
    el("p", { class: "note" }, "What follows this question is dropped."),
    el("button", { type: "submit" }, "Ask"),
    el("button", { type: "button", onclick: close }, "Cancel"),
  );
}

export function onEnter(submit) {
  return (event) => {
    if (event.key === "Enter" && !event.shiftKey && !composes(event)) submit(event);
  };
}
