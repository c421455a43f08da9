// Where questions are written.
import { send, stop } from "./actions.js";
import { state } from "./state.js";
import { html, useEffect, useRef } from "./ui.js";

export function Composer() {
  const field = useRef();
  // On a phone it would bring up the keyboard over the first screen.
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) field.current.focus();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const prompt = field.current.value.trim();
    if (!prompt || state.underWay) return;
    field.current.value = "";
    send(prompt);
  };
  return html`
    <form id="ask" aria-label="Ask" onSubmit=${submit}>
      <label class="unseen" for="prompt">Message</label>
      <textarea ref=${field} id="prompt" rows="2" placeholder="Ask something. Enter sends, Shift+Enter breaks the line." required onKeyDown=${onEnter(submit)}></textarea>
      ${state.underWay
        ? html`<button key="stop" id="stop" type="button" onClick=${stop}>Stop</button>`
        : html`<button key="send" id="send">Send</button>`}
    </form>
  `;
}

export function onEnter(submit) {
  return (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
}
