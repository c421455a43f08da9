// A question, and its answers in columns beside each other.
import { regenerate } from "./actions.js";
import { AnswerView } from "./answer_view.js";
import { onEnter } from "./composer.js";
import { state } from "./state.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { NAMES } from "./words.js";

export function TurnView({ turn }) {
  const [editing, edit] = useState(false);
  const section = useRef();
  const was = useRef(false); // edited
  useEffect(() => {
    // What began it may be gone: a button of the first screen, or of the answer before.
    if (!turn.restored && document.activeElement === document.body) section.current.focus({ preventScroll: true });
  }, []);
  useEffect(() => {
    if (was.current && !editing) section.current.querySelector(".edit")?.focus();
    was.current = editing;
  }, [editing]);
  const several = turn.modes.length > 1;
  return html`
    <section ref=${section} class="turn" tabindex="-1" aria-label="Question and answer">
      ${editing
        ? html`<${Editor} turn=${turn} close=${() => edit(false)} />`
        : html`<h2 dir="auto" class=${`question${turn.local ? " local" : ""}${turn.recording ? " recorded" : ""}`}>${turn.prompt}</h2>`}
      <div class="actions" aria-live="off">${!state.underWay && !editing && html`<${Actions} turn=${turn} edit=${() => edit(true)} />`}</div>
      <div class="answers">
        ${turn.modes.map(
          (mode) => html`
            <div class="column" key=${mode}>
              <h3 class=${several ? "" : "unseen"}>${NAMES[mode]}</h3>
              <${AnswerView} turn=${turn} answer=${turn.answers[mode]} />
            </div>
          `,
        )}
      </div>
    </section>
  `;
}

function Actions({ turn, edit }) {
  const again = turn.recording ? "Play again" : "Regenerate";
  return html`
    <button class="edit" type="button" onClick=${edit}>Edit</button>
    <button type="button" onClick=${() => regenerate(turn)}>${again}</button>
    ${turn.recording && state.health?.bundled && html`<button type="button" onClick=${() => regenerate(turn, { live: true })}>Ask for real</button>`}
  `;
}

function Editor({ turn, close }) {
  const field = useRef();
  useEffect(() => field.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    const prompt = field.current.value.trim();
    if (prompt) regenerate(turn, { prompt });
  };
  const keys = (event) => (event.key === "Escape" ? (event.stopPropagation(), close()) : onEnter(submit)(event));
  return html`
    <form class="editor" aria-label="Edit the question" onSubmit=${submit}>
      <textarea ref=${field} dir="auto" rows="3" aria-label="Question" defaultValue=${turn.prompt} onKeyDown=${keys}></textarea>
      <p>What follows this question is dropped.</p>
      <button aria-disabled=${Boolean(state.underWay)}>Ask</button>
      <button type="button" onClick=${close}>Cancel</button>
    </form>
  `;
}
