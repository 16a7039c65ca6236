// What the parts of the page share: building elements, writing numbers, calling the gateway.
//
// Everything that comes from a model or a service reaches the page as a text node. Never as markup.

import { givenKey } from "./store.js";

export const NOTHING = "–";

export const at = (id) => document.getElementById(id);

/** Change a text only where it differs, so that nothing is announced twice. */
export const setText = (id, text) => {
  if (at(id).textContent !== text) at(id).textContent = text;
};

/** Say how it goes, in whichever view is seen. */
export const say = (text) => {
  setText("state", text);
  setText("chat-state", text);
};

/** Say whether a key leaves what is open; Escape ends the composition of a character first. */
export const leaves = ({ key, isComposing }) => key === "Escape" && !isComposing;

// --- Building ---

export function make(name, { classes = "", ...attributes } = {}, ...children) {
  const svg = ["rect", "line"].includes(name);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  if (classes) element.setAttribute("class", classes);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function visible(text) {
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "(no whole character)";
}

export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : NOTHING);
export const ratio = (part, whole) => (whole > 0 ? part / whole : NaN);
export const time = (seconds) =>
  seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Read a protobuf duration in JSON, such as "0.123s"; absent is 0. */
export const seconds = (duration) => Number.parseFloat(duration ?? "0") || 0;

/** Read an enum value, "late" or "DRAFT_END_LATE". */
export const word = (value, prefix) =>
  String(value ?? "")
    .replace(prefix, "")
    .toLowerCase();

// --- The gateway ---

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, options = {}) {
  const key = givenKey();
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(response.status, answer.error?.message || `The gateway answered ${response.status}.`);
}

/** Yield what a stream of server-sent events carries. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value = "\n", done } = await reader.read();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const data = line.startsWith("data:") ? line.slice(5).trim() : "";
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
