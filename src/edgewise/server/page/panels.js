// Panels over the page; Escape closes the one that was opened last.
import { redraw, state } from "./state.js";

export function toggle(name) {
  state.panel = state.panel === name ? "" : name;
  redraw();
}

// The focus goes back to what opened it.
export function closePanels() {
  if (state.token) {
    document.querySelector(".token.chosen")?.closest(".text").focus();
    state.token = null;
  } else if (state.panel) {
    document.querySelector(`[aria-controls=${state.panel}]`)?.focus();
    state.panel = "";
  } else {
    const open = [...document.querySelectorAll("footer details[open]")].pop();
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  }
  redraw();
}
