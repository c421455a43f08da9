// The layout.
import { Composer } from "./composer.js";
import { Sent } from "./drawer.js";
import { FirstScreen } from "./first_screen.js";
import { Header } from "./header.js";
import { Legend } from "./legend.js";
import { Scroller } from "./scroller.js";
import { state } from "./state.js";
import { TokenPanel } from "./token_panel.js";
import { TurnView } from "./turn_view.js";
import { html } from "./ui.js";

export function App() {
  const { conversation } = state;
  const { turns } = conversation;
  return html`
    <${Header} />
    ${turns.length > 0 && html`<${Legend} />`}
    <${Scroller} last=${turns.at(-1)?.id}>
      ${turns.length === 0 && html`<${FirstScreen} />`}
      <div class="turns" role="log" aria-label="Conversation">
        ${turns.map((turn) => html`<${TurnView} key=${turn.id} turn=${turn} />`)}
      </div>
    <//>
    <footer><${Sent} /></footer>
    <${TokenPanel} />
    <${Composer} />
  `;
}
