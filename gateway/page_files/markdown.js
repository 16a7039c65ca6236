// Markdown as elements: a small part of it, built node by node, so that no text becomes markup.
//
// Headings, paragraphs, lists, quotes, tables, rules, fenced code; in lines code, bold, italics and links to the
// web. What is not understood stays the text that it is.

import { make } from "./base.js";

const INLINE =
  /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*|(?<!\w)_([^_\s][^_\n]*)_(?!\w)|\[([^\][\n]+)\]\((https?:\/\/[^\s)]+)\)/g;
const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^\s*(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$/;

/** Return the nodes of one line. */
function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, bold, star, underscore, label, address] = found;
    if (found.index > end) nodes.push(text.slice(end, found.index));
    if (code !== undefined) nodes.push(make("code", {}, code));
    else if (bold !== undefined) nodes.push(make("strong", {}, ...inline(bold)));
    else if (address !== undefined)
      nodes.push(make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, label));
    else nodes.push(make("em", {}, ...inline(star ?? underscore)));
    end = found.index + whole.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|");
const row = (name, line) =>
  make("tr", {}, ...cells(line).map((cell) => make(name, {}, ...inline(cell.trim()))));

/** Says what begins at a line: [elements, number of lines]; paragraphs begin where nothing else does. */
function blockAt(lines, start) {
  const line = lines[start];
  const while_ = (test) => {
    let end = start;
    while (end < lines.length && test(lines[end])) end += 1;
    return end - start;
  };
  const fence = FENCE.exec(line);
  if (fence) return codeBlock(lines, start, fence);
  const heading = HEADING.exec(line);
  if (heading) return [make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])), 1];
  if (RULE.test(line)) return [make("hr"), 1];
  if (QUOTE.test(line)) {
    const count = while_((each) => QUOTE.test(each));
    const inner = lines.slice(start, start + count).map((each) => each.replace(QUOTE, ""));
    return [make("blockquote", {}, ...inline(inner.join("\n"))), count];
  }
  if (ITEM.test(line)) {
    const ordered = ITEM.exec(line)[2];
    const count = while_((each) => ITEM.test(each) && Boolean(ITEM.exec(each)[2]) === Boolean(ordered));
    const items = lines.slice(start, start + count).map((each) => make("li", {}, ...inline(ITEM.exec(each)[3])));
    return [make(ordered ? "ol" : "ul", ordered ? { start: ordered } : {}, ...items), count];
  }
  if (line.includes("|") && TABLE_RULE.test(lines[start + 1] ?? "")) {
    const count = while_((each) => each.includes("|"));
    const body = lines.slice(start + 2, start + count).map((each) => row("td", each));
    const table = make("table", {}, make("thead", {}, row("th", line)), make("tbody", {}, ...body));
    return [make("div", { classes: "table" }, table), Math.max(2, count)];
  }
  return null;
}

/** Return a fenced block; one that is not closed yet goes to the end. */
function codeBlock(lines, start, [, fence, language]) {
  const closes = (line) => line.trim().startsWith(fence) && !line.trim().slice(fence.length).trim();
  let end = start + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = make("code", {}, lines.slice(start + 1, end).join("\n"));
  const copy = make("button", { type: "button", classes: "small copy-code" }, "Copy");
  const head = make("div", { classes: "code-head" }, make("small", {}, language || "code"), copy);
  return [make("div", { classes: "code" }, head, make("pre", {}, code)), end - start + 1];
}

/** Return the elements of a text in Markdown. */
export function markdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let paragraph = [];
  const close = () => {
    if (paragraph.length) blocks.push(make("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; ) {
    const block = lines[i].trim() ? blockAt(lines, i) : null;
    if (block) {
      close();
      blocks.push(block[0]);
      i += block[1];
    } else {
      if (lines[i].trim()) paragraph.push(lines[i]);
      else close();
      i += 1;
    }
  }
  close();
  return blocks;
}
