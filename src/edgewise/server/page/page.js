// The chat page. Whatever a model or a server writes is set as text, never as markup; formatted
// answers are sanitised (formatted.js).
//
//   state.js         the one place where everything is: conversation, settings, what runs
//   conversation.js  questions and their answers; answer.js: an answer and its tokens
//   feed.js          chunks of a reply or of a recording into an answer
//   shapes.js        what is believed of a server and of the storage
//   api.js           requests; actions.js: what a reader can do; keeping.js: what a reload finds
//   app.js           the layout; it puts the instruments of instruments.js in their places
//
// Models are plain objects: whoever changes one calls `changed` (or `redraw`, where nothing is to be kept), and the page is drawn from the top.
import { readRecordings, refresh } from "./api.js";
import { App } from "./app.js";
import { closePanels } from "./panels.js";
import { keep, restore, subscribe } from "./state.js";
import { html, render } from "./ui.js";

const root = document.getElementById("page");

restore();
subscribe(() => render(html`<${App} />`, root));
render(html`<${App} />`, root);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closePanels();
});
setInterval(keep, 1000);
addEventListener("pagehide", keep);
refresh();
readRecordings();
