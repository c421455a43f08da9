// Who writes, how much the cloud may, what stays here, and what runs.
import { newChat, set } from "./actions.js";
import { choose, shareNow } from "./api.js";
import { focusField } from "./composer.js";
import { toggle } from "./panels.js";
import { SettingsPanel } from "./settings_panel.js";
import { changed, state } from "./state.js";
import { html } from "./ui.js";
import { milliseconds, NAMES } from "./words.js";

export function Header() {
  const { conversation, settings } = state;
  const { local } = conversation;
  // Once something was said here, it stays so until a new chat begins.
  const fixed = local && conversation.turns.some((turn) => turn.local);
  // What a reload has kept and nobody sees would be a riddle.
  const own = ["system", "temperature", "limit"].some((name) => settings[name] !== "");
  return html`
    <header>
      <h1>Edgewise</h1>
      <p id="status">${what()}<span role="status">${wrong()}</span></p>
      <div class="actions">
        <button type="button" aria-expanded=${state.panel === "settings"} aria-controls="settings" onClick=${() => toggle("settings")}>Settings${own && " (set)"}</button>
        <button type="button" onClick=${begin}>New chat</button>
      </div>
      <form id="settings-bar" aria-label="Who writes" onSubmit=${(event) => event.preventDefault()}>
        <fieldset id="modes">
          <legend>Who writes</legend>
          ${Object.keys(NAMES).map((mode) => html`<${Mode} key=${mode} mode=${mode} />`)}
        </fieldset>
        ${state.models.length > 1 && html`<${Choice} />`}
        <label class="share">Cloud share
          <input id="share" type="range" min="0" max="30" step="1" value=${shareNow() ?? 0} onInput=${(event) => set("share", event.target.value)} />
          <output id="share-value" for="share">${shareInWords()}</output>
        </label>
        <label title="Nothing from here on is sent to the cloud, until a new chat begins">
          <input id="local" type="checkbox" checked=${local} disabled=${fixed} onChange=${(event) => keepLocal(event.target.checked)} /> local
        </label>
      </form>
      ${state.panel === "settings" && html`<${SettingsPanel} />`}
      ${state.warning && html`<p class="warning" role="status">${state.warning}</p>`}
    </header>
  `;
}

// Until the dial is touched, the server's own flags say how often the cloud is asked.
function shareInWords() {
  const share = shareNow();
  if (share !== null) return `${share}%`;
  return state.health ? `threshold ${state.health.threshold}` : "";
}

function Mode({ mode }) {
  const needsCloud = mode === "cloud" || mode === "beside";
  // One conversation, whoever writes: later questions take along what was said before.
  const told = mode === "edge" ? "Sends nothing; what is said goes along once the pair or the cloud is asked. Local keeps it here." : undefined;
  return html`
    <label title=${told}>
      <input
        type="radio"
        name="mode"
        value=${mode}
        checked=${state.settings.mode === mode}
        disabled=${needsCloud && state.health !== null && !state.health.cloud}
        onChange=${() => set("mode", mode)}
      /> ${NAMES[mode]}
    </label>
  `;
}

// There is a choice where the server has several.
function Choice() {
  const chosen = (event) => {
    choose(event.target.value);
    set("model", event.target.value);
  };
  return html`
    <label class="model">Model
      <select id="model" value=${state.health.model} onChange=${chosen}>
        ${state.models.map(({ model }) => html`<option key=${model}>${model}</option>`)}
      </select>
    </label>
  `;
}

function begin() {
  newChat();
  focusField();
}

function keepLocal(local) {
  state.conversation.local = local;
  changed();
}

// What runs, which is not read out whenever its pace changes.
function what() {
  const { gone, health } = state;
  if (gone || !health) return "";
  const parts = [health.edge, health.cloud ? `with ${health.cloud}` : "without a cloud"];
  if (health.round_trip_seconds != null) parts.push(`round trip ${milliseconds(health.round_trip_seconds)}`);
  return parts.join(", ");
}

// What is wrong with it.
function wrong() {
  return state.gone || (state.health?.cloud_paused ? ", cloud paused after failures" : "");
}
