// Settings of the answers to come; what is left empty is as the server has it.
import { set } from "./actions.js";
import { state } from "./state.js";
import { html, useEffect, useRef } from "./ui.js";

export function SettingsPanel() {
  const panel = useRef();
  const { asksKey, settings } = state;
  useEffect(() => panel.current.querySelector(asksKey ? "#key" : "#system").focus(), [asksKey]);
  return html`
    <section ref=${panel} id="settings" class="panel" aria-label="Settings">
      <label>System prompt
        <textarea id="system" dir="auto" rows="2" defaultValue=${settings.system} onInput=${typed("system")}></textarea>
      </label>
      <label>Temperature
        <input id="temperature" type="number" min="0" max="2" step="0.1" placeholder="the server's" defaultValue=${settings.temperature} onInput=${typed("temperature")} />
      </label>
      <label>Longest answer, tokens
        <input id="limit" type="number" min="1" max="1048576" step="1" placeholder="the server's" defaultValue=${settings.limit} onInput=${typed("limit")} />
      </label>
      ${asksKey && html`<${Key} />`}
    </section>
  `;
}

// What is no number, or none that the server takes, is marked and not kept.
function typed(name) {
  return ({ target }) => {
    if (target.checkValidity()) set(name, target.value);
  };
}

function Key() {
  const typedKey = (event) => (state.key = event.target.value);
  return html`
    <label>API key
      <input id="key" type="password" autocomplete="off" spellcheck=${false} defaultValue=${state.key} onInput=${typedKey} />
    </label>
  `;
}
