// Many small things in a row: only blocks in which something changed are drawn again.
import { Component, html } from "./ui.js";

const SIZE = 64;

// `draw(item, number)` makes one; it may read `items`, which grow at their end, and `key`.
export function Blocks({ items, draw, mark }) {
  const blocks = [];
  for (let start = 0; start < items.length; start += SIZE) {
    const count = Math.min(SIZE, items.length - start);
    blocks.push(html`<${Block} key=${start} items=${items} start=${start} count=${count} draw=${draw} mark=${mark(start, start + count)} />`);
  }
  return blocks;
}

class Block extends Component {
  shouldComponentUpdate({ items, count, mark }) {
    return items !== this.props.items || count !== this.props.count || mark !== this.props.mark;
  }

  render({ items, start, count, draw }) {
    return items.slice(start, start + count).map((item, place) => draw(item, start + place));
  }
}
