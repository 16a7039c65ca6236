// Markdown as elements: markdown-it reads it, and its tokens become nodes here, so that no text becomes markup.
//
// HTML stays the text that it is, an address leads to the web or to mail, and no image is fetched.

import { make } from "./base.js";
import { fillCode } from "./highlighting.js";
import MarkdownIt from "./libraries/markdown-it.js";
import { addMaths, mathsElement } from "./maths.js";

const reader = new MarkdownIt({ html: false, linkify: true });
reader.validateLink = (address) => /^(https?:\/\/|mailto:)/i.test(address);
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // no domain is guessed from setup.py
reader.disable("lheading"); // a list or a rule that begins below a line does not make it a heading
addMaths(reader);

const TASK = /^\[([ xX])\] /;

const link = (address, ...children) =>
  make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);

/** Return the address of an image behind its description. */
function image(token) {
  const address = token.attrGet("src");
  const shown = link(address, address);
  return token.content ? make("span", {}, `${token.content} (`, shown, ")") : shown;
}

function codeBlock(token) {
  const language = token.info.trim().split(/\s+/)[0];
  const text = token.content.replace(/\n$/, "");
  const code = make("code");
  if (language) fillCode(code, text, language.toLowerCase());
  else code.textContent = text;
  const copy = make("button", { type: "button", classes: "small copy-code" }, "Copy");
  const head = make("div", { classes: "code-head" }, make("small", {}, language || "code"), copy);
  return make("div", { classes: "code" }, head, make("pre", { tabindex: "0" }, code));
}

/** Makes what has nothing inside, by the type of its token; other types are text. */
const LEAVES = {
  code_inline: (token) => make("code", {}, token.content),
  code_block: codeBlock,
  fence: codeBlock,
  hardbreak: () => make("br"),
  hr: () => make("hr"),
  image,
  maths: mathsElement,
  softbreak: () => "\n",
};

/** Return the element that a token opens. */
function container(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (token.type === "heading_open") return make(`h${Math.min(6, Number(token.tag[1]) + 2)}`);
  const start = token.attrGet("start");
  const [, side] = /^text-align:(\w+)$/.exec(token.attrGet("style") ?? "") ?? [];
  return make(token.tag, { ...(start && { start }), ...(side && { classes: side }) });
}

/** Append the nodes of tokens to an element. */
function build(root, tokens) {
  const open = [root];
  for (const token of tokens) {
    const top = open.at(-1);
    if (token.hidden) continue; // the paragraph of an item in a list without empty lines
    if (token.type === "inline") build(top, withTask(top, token.children));
    else if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) top.append(LEAVES[token.type]?.(token) ?? token.content);
    else {
      const element = container(token);
      top.append(token.tag === "table" ? make("div", { classes: "table", tabindex: "0" }, element) : element);
      open.push(element);
    }
  }
}

/** Show the box of a task that begins an item. */
function withTask(top, tokens) {
  const item = top.tagName === "LI" || top.parentElement?.tagName === "LI";
  const box = item && top.childNodes.length === 0 && TASK.exec(tokens[0]?.content ?? "");
  if (box) tokens[0].content = tokens[0].content.replace(TASK, box[1] === " " ? "☐ " : "☑ ");
  return tokens;
}

/** Return the nodes of a text in Markdown, which may end anywhere. */
export function markdown(text) {
  const root = document.createDocumentFragment();
  build(root, reader.parse(text, {}));
  return [...root.childNodes];
}
