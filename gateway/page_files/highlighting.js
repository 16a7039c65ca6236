// Code with its parts coloured, from the tree of highlight.js.

import { make } from "./base.js";
import { filler } from "./lazy.js";

// Characters of a block, and a line that is too long: such a block is shown without colours. Some grammars take time
// by the square of a line's length: 20,000 characters of ini took 5 s.
const MOST = 10_000;
const LONG_LINE = /[^\n]{500}/;

/** Return the nodes of a part of the tree: texts, and spans of the class hl-SCOPE. */
function nodes({ children }) {
  return children.map((child) => {
    if (typeof child === "string") return child;
    const [scope] = (child.scope ?? "").split(/[.:]/);
    return make("span", { classes: `hl-${scope}` }, ...nodes(child));
  });
}

function draw({ default: library }, text, language) {
  if (text.length > MOST || LONG_LINE.test(text) || !library.getLanguage(language)) return null;
  return nodes(library.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode);
}

/** Fill an element with code: `fillCode(element, text, language)`. */
export const fillCode = filler(() => import("./libraries/highlight.js"), draw);
