// A text in Markdown that grows: only what differs is changed, and of a long text only its end is read again.

import { markdown } from "./markdown.js";
import { patch } from "./patch.js";

const READ_AGAIN = 4000; // characters; 1 to 2 ms of Markdown on a slow core
const LAST = 1500; // characters at the end that are never settled: a list or a table may still grow

/** Draws a text into an element. Its beginning is settled where it reads the same alone. */
export class GrowingText {
  constructor(box) {
    this.box = box;
    this.settled = { characters: 0, nodes: 0 };
    this.tryAt = READ_AGAIN; // characters behind the settled ones, from which on more may be settled
  }

  /** Draw a text that will grow. */
  draw(text) {
    const { characters, nodes } = this.settled;
    patch(this.box, markdown(text.slice(characters)), nodes);
    if (text.length - characters > this.tryAt) this.settle(text);
  }

  /** Draw a text that is whole: read at once, as what follows may change how the beginning reads. */
  drawWhole(text) {
    this.settled = { characters: 0, nodes: 0 };
    this.tryAt = READ_AGAIN;
    patch(this.box, markdown(text));
  }

  /** Settle what is before the last empty lines, if it and the rest read alone as they read together. */
  settle(text) {
    const { characters, nodes } = this.settled;
    const end = text.lastIndexOf("\n\n", text.length - LAST);
    this.tryAt = text.length - characters + LAST;
    if (end <= characters) return;
    const before = markdown(text.slice(characters, end));
    const apart = [...before, ...markdown(text.slice(end))];
    const together = [...this.box.childNodes].slice(nodes);
    const isSame = apart.length === together.length && apart.every((each, i) => each.isEqualNode(together[i]));
    if (!isSame) return;
    this.settled = { characters: end, nodes: nodes + before.length };
    this.tryAt = READ_AGAIN;
  }
}
