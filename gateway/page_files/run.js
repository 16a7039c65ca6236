// Runs one generation at a time, shows it in the instrument, and says how it went.

import { Refusal, at, call, count, events, make, setText, time } from "./base.js";
import { Generation } from "./generation.js";
import { appendTokens, hideTip, markTail, redraw } from "./instrument.js";
import { askForKey } from "./peers.js";
import { state } from "./state.js";

const STOPS = {
  eos: "the model ended the text",
  limit: "the token limit",
  word: "a stop sequence",
  none: "",
};

function setRunning(value) {
  state.running = value;
  for (const id of ["generate", "send", "regenerate"]) at(id).setAttribute("aria-disabled", value);
  for (const id of ["cancel", "stop"]) at(id).setAttribute("aria-disabled", !value);
  at("text").setAttribute("aria-busy", value);
}

function begin(request, shown) {
  state.generation = new Generation(request, state.status?.controller?.target_alone_token_rate || 0);
  hideTip();
  setText("alert", "");
  at("text").replaceChildren(make("span", { classes: "prompt" }, shown));
  setText("state", "Reading the prompt …");
  setRunning(true);
  redraw();
}

/**
 * Run a request; `shown` stands before the tokens, `onText` gets the text so far. Returns the generation: without
 * an `end` where it was cancelled or failed, and then the page says why.
 */
export async function run(request, shown, onText = () => {}) {
  begin(request, shown);
  const generation = state.generation;
  try {
    const response = await call("completion", {
      method: "POST",
      body: JSON.stringify(request),
      signal: generation.abort.signal,
    });
    for await (const message of events(response.body)) {
      appendTokens(generation.take(message));
      setText("state", "Generating …");
      onText(generation.text);
      redraw();
    }
    if (!generation.end) throw new Refusal(0, "The stream ended before the generation did.");
    setText("state", `Done: ${ending(generation)}`);
  } catch (error) {
    showFailure(error, generation.tokens.length);
  }
  markTail();
  setRunning(false);
  redraw();
  return generation;
}

function ending({ end, numbers }) {
  const reason = STOPS[end.stop_type] ?? end.stop_type;
  const seed = end.generation_settings?.seed;
  const parts = [
    count(numbers.generated, "token"),
    time(numbers.elapsed),
    reason,
    seed == null ? "" : `seed ${seed}`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

/** Say what ended a generation after so many tokens. */
export function showFailure(error, tokens = 0) {
  const after = count(tokens, "token");
  if (error.name === "AbortError") return setText("state", `Cancelled after ${after}.`);
  setText("state", `Failed after ${after}.`);
  if (error.status === 401) return askForKey(error.message);
  setText(
    "alert",
    error instanceof Refusal ? error.message : `The gateway cannot be reached (${error.message}).`,
  );
}

/** End the generation that runs; the gateway sees the client go and frees both models. */
export function cancel() {
  if (state.running) state.generation.abort.abort();
}
