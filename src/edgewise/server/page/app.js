// The layout, and the places of the instruments (instruments.js).
import { Composer } from "./composer.js";
import { FirstScreen } from "./first_screen.js";
import { Header } from "./header.js";
import { drawers, overConversation } from "./instruments.js";
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
      ${overConversation.map((Place) => html`<${Place} conversation=${conversation} />`)}
      <div class="turns" role="log" aria-label="Conversation">
        ${turns.map((turn) => html`<${TurnView} key=${turn.id} conversation=${conversation} turn=${turn} />`)}
      </div>
    <//>
    <footer>${drawers.map((Drawer) => html`<${Drawer} conversation=${conversation} />`)}</footer>
    <${TokenPanel} conversation=${conversation} />
    <${Composer} />
  `;
}
