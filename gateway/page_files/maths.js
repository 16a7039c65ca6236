// Mathematics: what is a formula in Markdown, and formulas as MathML, from the tree of KaTeX.

import { make } from "./base.js";
import { filler } from "./lazy.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const CLOSING = { "$$": "$$", "\\[": "\\]", "\\(": "\\)" };
const LONGEST = 200; // lines of one formula
// A formula between single dollars touches both; no digit follows, as in $5-$6.
const DOLLARS = /(?<![\w$])\$(?![\s$])((?:\\[^]|[^\\$])+)(?<!\s)\$(?![\d$])/y;
const MONEY = /^\d[^\\]*[\s(][a-z]{2,}/i; // $5 (or 6$)
const LIMITS = { maxSize: 20, maxExpand: 1000 }; // em; expansions of macros
// A macro of 2,000 letters, written 300 times, takes seconds: formulas that define some are shown as they are written.
const DEFINES = /\\([gex]?def|let|futurelet|(re)?newcommand|providecommand)(?![a-zA-Z])/;
const UNSAFE = new Set(["href", "src", "style", "xmlns"]); // attributes: no address, nothing that the policy refuses
// Where the capital A, the small a and the digit 0 of a kind of letter are in Unicode: browsers leave
// mathvariant out, and the letters that were there before the block of them are elsewhere.
const KINDS = {
  bold: [0x1d400, 0x1d41a, 0x1d7ce],
  "double-struck": [0x1d538, 0x1d552, 0x1d7d8],
  fraktur: [0x1d504, 0x1d51e],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6],
  "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  script: [0x1d49c, 0x1d4b6],
};
const ELSEWHERE = {
  "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
  fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
};

// --- Finding ---

/** Find a formula in a line: {text, end, display, open}, where `open` says that it is not closed yet. */
function formulaAt(source, start, limit) {
  const opening = source.slice(start, start + 2);
  if (opening === "$$" && (source[start - 1] === "$" || source[start + 2] === "$")) return null;
  if (CLOSING[opening]) {
    const end = source.indexOf(CLOSING[opening], start + 2);
    const closed = end >= 0 && end + 2 <= limit;
    if (!closed && opening === "$$") return null;
    if (!closed) return { text: source.slice(start, limit), end: limit, open: true };
    return { text: source.slice(start + 2, end), end: end + 2, display: opening !== "\\(" };
  }
  DOLLARS.lastIndex = start;
  const found = DOLLARS.exec(source);
  if (!found || start + found[0].length > limit || MONEY.test(found[1])) return null;
  return { text: found[1], end: start + found[0].length };
}

function inlineRule(state, silent) {
  if (!"$\\".includes(state.src[state.pos])) return false;
  const found = formulaAt(state.src, state.pos, state.posMax);
  if (!found) return false;
  if (!silent) push(state, found);
  state.pos = found.end;
  return true;
}

/** Find a formula on lines of its own; one that is not closed ends at an empty line. */
function blockRule(state, first, last, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]);
  const inside = (n) => n < Math.min(last, first + LONGEST) && !state.isEmpty(n) && state.sCount[n] >= state.blkIndent;
  const opening = line(first).slice(0, 2);
  if (!["$$", "\\["].includes(opening) || line(first)[2] === "$") return false;
  if (state.sCount[first] - state.blkIndent >= 4) return false; // indented code
  const lines = [line(first).slice(2)];
  let end = first + 1;
  while (!lines.at(-1).includes(CLOSING[opening]) && inside(end)) lines.push(line(end++));
  const text = lines.join("\n");
  const close = text.indexOf(CLOSING[opening]);
  if (close >= 0 && text.slice(close + 2).trim()) return false; // a part of a paragraph
  if (silent) return true;
  if (close < 0) push(state, { text: opening + text, display: true, open: true });
  else push(state, { text: text.slice(0, close), display: true });
  state.line = end;
  return true;
}

function push(state, { text, display = false, open = false }) {
  const token = state.push("maths", "", 0);
  token.content = text.trim();
  token.meta = { display, open };
}

/** Let a reader of Markdown find formulas: tokens of the type "maths". */
export function addMaths(reader) {
  reader.inline.ruler.before("escape", "maths", inlineRule);
  const alt = ["paragraph", "reference", "blockquote", "list"];
  reader.block.ruler.before("fence", "maths", blockRule, { alt });
}

// --- Drawing ---

/** Return a letter or digit in a kind of MathML's, as it is where there is none. */
function lettered(character, kind) {
  const other = ELSEWHERE[kind]?.[character];
  const first = [/[A-Z]/, /[a-z]/, /[0-9]/].findIndex((each) => each.test(character));
  const base = KINDS[kind]?.[first];
  if (other || !base) return other ?? character;
  return String.fromCodePoint(base + character.charCodeAt(0) - "Aa0".charCodeAt(first));
}

/** Return KaTeX's node as nodes of the document. */
function nodes(tree) {
  const children = () => tree.children.flatMap(nodes);
  if (!tree.type) return tree.children ? children() : [tree.toNode()]; // a group; a text or a space
  const element = document.createElementNS(MATHML, tree.type);
  for (const [name, value] of Object.entries(tree.attributes))
    if (!UNSAFE.has(name)) element.setAttribute(name, value);
  element.append(...children());
  element.normalize();
  const kind = tree.attributes.mathvariant;
  if (kind && element.children.length === 0)
    element.textContent = Array.from(element.textContent, (each) => lettered(each, kind)).join("");
  return [element];
}

function draw({ mathTree }, text, kind) {
  if (DEFINES.test(text)) return null;
  const displayMode = kind === "display";
  return nodes(mathTree(text, { ...LIMITS, displayMode, output: "mathml", strict: "ignore" }));
}

const fillMaths = filler(() => import("./libraries/katex.js"), draw);

/** Return the element of a token; a formula that is not closed, or not understood, is shown as it is written. */
export function mathsElement({ content, meta: { display, open } }) {
  const element = make("span", { classes: display ? "maths display" : "maths" });
  if (open) element.textContent = content;
  else fillMaths(element, content, display ? "display" : "inline");
  return element;
}
