// Where questions are written.
import { send, stop } from "./actions.js";
import { state } from "./state.js";
import { html, useEffect, useRef } from "./ui.js";

export function Composer() {
  const field = useRef();
  useEffect(focusField, []);
  const submit = (event) => {
    event.preventDefault();
    const prompt = field.current.value.trim();
    if (!prompt || state.underWay) return;
    field.current.value = "";
    send(prompt);
  };
  const writing = Boolean(state.underWay);
  return html`
    <form id="ask" aria-label="Ask" onSubmit=${submit}>
      <label class="unseen" for="prompt">Message</label>
      <textarea ref=${field} id="prompt" dir="auto" rows="2" placeholder="Ask something. Enter sends, Shift+Enter breaks the line." required onKeyDown=${onEnter(submit)}></textarea>
      ${/* One button, so that it keeps the focus. */ ""}
      <button id=${writing ? "stop" : "send"} type=${writing ? "button" : "submit"} onClick=${writing ? stop : null}>${writing ? "Stop" : "Send"}</button>
    </form>
  `;
}

// On a phone it would bring up the keyboard over the first screen.
export function focusField() {
  if (matchMedia("(pointer: fine)").matches) document.getElementById("prompt").focus();
}

export function onEnter(submit) {
  return (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
}
