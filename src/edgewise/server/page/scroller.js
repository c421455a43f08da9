// The conversation scrolls to its end while it grows, if the reader is there.
import { Component, html } from "./ui.js";

const NEAR = 48; // pixels

export class Scroller extends Component {
  atEnd = true;
  top = 0; // where it was last seen

  componentDidMount() {
    this.componentDidUpdate({});
  }

  // `last` is the last question's id, undefined where there is none: the first screen, which is read
  // from its top.
  componentDidUpdate({ last: before }) {
    const { last } = this.props;
    if (last !== before) this.atEnd = true;
    if (last !== undefined && this.atEnd) this.toEnd();
    else if (last !== before) this.main.scrollTop = 0;
  }

  // The button for it goes, so the focus goes to what was scrolled.
  goToEnd() {
    this.main.focus({ preventScroll: true });
    this.toEnd();
  }

  toEnd() {
    this.main.scrollTop = this.main.scrollHeight;
  }

  // Who goes up by a pixel leaves the end: a finger goes up by few between two draws. Growth alone
  // does not leave it, nor does what is so short now that it cannot be scrolled as far.
  look() {
    const { scrollHeight, scrollTop, clientHeight } = this.main;
    const left = scrollHeight - scrollTop - clientHeight;
    const atEnd = scrollTop < this.top ? left <= 1 : this.atEnd || left < NEAR;
    this.top = scrollTop;
    if (atEnd === this.atEnd) return;
    this.atEnd = atEnd;
    this.forceUpdate();
  }

  render({ children, last }) {
    return html`
      <main ref=${(main) => (this.main = main)} tabindex="-1" onScroll=${() => this.look()}>
        ${children}
        ${last !== undefined && !this.atEnd && html`<button class="to-end" type="button" onClick=${() => this.goToEnd()}>To the end</button>`}
      </main>
    `;
  }
}
