// The field of the question: it grows with what is typed, and Enter sends it.

import { at } from "./base.js";

const isTouched = () => matchMedia("(pointer: coarse)").matches;

/** Give the field the height of its text; the style sheet says how far. */
function fit() {
  const field = at("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`; // with its border
}

/** Say whether a key sends what is typed; on a touch screen only the button does. */
export const sends = ({ key, shiftKey, isComposing }) => key === "Enter" && !shiftKey && !isComposing && !isTouched();

function onKey(event) {
  if (!sends(event)) return;
  event.preventDefault();
  at("chat-form").requestSubmit();
}

/** Return what was typed, or "" where that is nothing. */
export const typed = () => at("question").value.trim();

export function emptyComposer() {
  at("question").value = "";
  fit();
}

/** Let the keyboard type the next question; on a touch screen that would cover the page. */
export function focusComposer() {
  if (!isTouched()) at("question").focus();
}

export function startComposer() {
  at("question").addEventListener("keydown", onKey);
  at("question").addEventListener("input", fit);
}
