// Code with its parts coloured, from the tree of highlight.js.

import { make } from "./base.js";
import { filler } from "./lazy.js";

const MOST = 50_000; // characters of a block; a longer one is shown without colours, which would take 50 ms

/** Return the nodes of a part of the tree: texts, and spans of the class hl-SCOPE. */
function nodes({ children }) {
  return children.map((child) => {
    if (typeof child === "string") return child;
    const [scope] = (child.scope ?? "").split(/[.:]/);
    return make("span", { classes: `hl-${scope}` }, ...nodes(child));
  });
}

function draw({ default: library }, text, language) {
  if (text.length > MOST || !library.getLanguage(language)) return null;
  return nodes(library.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode);
}

/** Fill an element with code: `fillCode(element, text, language)`. */
export const fillCode = filler(() => import("./libraries/highlight.js"), draw);
