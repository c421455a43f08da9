// The chat page. Whatever a model or a server writes is set as text, never as markup: formatted
// answers are built node by node (markdown.js).
//
//   state.js         the one place where everything is: conversation, settings, what runs
//   conversation.js  questions and their answers; answer.js: an answer and its tokens
//   api.js           requests; shapes.js: what is believed of a server and of the storage
//   actions.js       what a reader can do; pace.js: how fast the bundled pair is shown
//   keeping.js       what a reload finds
//   the rest         views: each draws its part of index.html from the state
//
// Models are plain objects: whoever changes one calls `changed` (or `redraw`, where nothing is to be
// kept), and every view is drawn once in the next frame.
import { readExamples, refresh } from "./api.js";
import { drawControls, focusField, listen } from "./controls.js";
import { byId, composes } from "./dom.js";
import { drawFirstScreen } from "./first_screen.js";
import { drawSent } from "./sent.js";
import { keep, redraw, restore, state, subscribe } from "./state.js";
import { closeTokenPanel, drawTokenPanel } from "./token_panel.js";
import { drawTurns } from "./turns.js";

restore();
listen();
subscribe(() => {
  drawControls();
  drawFirstScreen();
  drawTurns();
  drawTokenPanel();
  drawSent();
});
redraw();
focusField();

// Escape closes what was opened last; the focus goes back to what opened it.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || composes(event)) return;
  const sent = byId("sent");
  if (state.token) closeTokenPanel();
  else if (state.settingsOpen) {
    state.settingsOpen = false;
    byId("settings-button").focus();
    redraw();
  } else if (sent.open) {
    sent.open = false;
    sent.querySelector("summary").focus();
  }
});

// A page that is left loses its connections then: what breaks off is no part of what is kept.
let left = false;
const keepOn = () => left || keep();
setInterval(keepOn, 1000);
// On a phone being hidden may be the last that a page is told.
document.addEventListener("visibilitychange", keepOn);
addEventListener("pagehide", () => {
  keep();
  left = true;
});
addEventListener("pageshow", () => (left = false));
refresh();
readExamples();
