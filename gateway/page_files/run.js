// Runs one generation at a time, shows it in the instrument, and says how it went.

import { Refusal, at, call, count, events, say, setText, time } from "./base.js";
import { Generation } from "./generation.js";
import { draw, redraw } from "./instrument.js";
import { askForKey } from "./peers.js";
import { state } from "./state.js";

const STOPS = {
  eos: "the model ended the text",
  limit: "the token limit",
  word: "a stop sequence",
  none: "",
};

function setRunning(generation) {
  state.running = generation;
  const isRunning = Boolean(generation);
  document.body.classList.toggle("running", isRunning);
  for (const id of ["generate", "send"]) at(id).setAttribute("aria-disabled", isRunning);
  for (const id of ["cancel", "stop"]) at(id).setAttribute("aria-disabled", !isRunning);
  for (const id of ["text", "messages"]) at(id).setAttribute("aria-busy", isRunning);
}

function begin(request, shown) {
  const alone = state.status?.controller?.target_alone_token_rate || 0;
  state.generation = new Generation(request, shown, alone);
  setText("alert", "");
  say("Reading the prompt …");
  setRunning(state.generation);
  redraw();
  return state.generation;
}

/**
 * Run a request of a route; `shown` stands before the tokens, `onEvent` gets each event and the generation so far.
 * Returns the generation: without an `end` where it was cancelled or failed, and then the page says why.
 */
export async function run(path, request, shown, onEvent = () => {}) {
  const generation = begin(request, shown);
  let failure = null;
  try {
    const body = JSON.stringify(request);
    const response = await call(path, { method: "POST", body, signal: generation.abort.signal });
    for await (const event of events(response.body)) {
      generation.take(event);
      onEvent(event, generation);
      say("Generating …");
      redraw();
    }
    if (!generation.end) throw new Refusal(0, "The stream ended before the generation did.");
  } catch (error) {
    failure = error;
  }
  setRunning(null);
  draw();
  if (failure) showFailure(failure, generation.tokens.length);
  else say(`Done: ${ending(generation)}`);
  return generation;
}

function ending({ end, numbers }) {
  const reason = STOPS[end.stop_type] ?? end.stop_type;
  const parts = [
    count(numbers.generated, "token"),
    time(numbers.elapsed),
    reason,
    end.seed == null ? "" : `seed ${end.seed}`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

/** Say what ended a generation after so many tokens. */
function showFailure(error, tokens) {
  const after = count(tokens, "token");
  if (error.name === "AbortError") return say(`Cancelled after ${after}.`);
  say(`Failed after ${after}.`);
  if (error.status === 401) return askForKey(error.message);
  setText(
    "alert",
    error instanceof Refusal ? error.message : `The gateway cannot be reached (${error.message}).`,
  );
}

/** End the generation that runs; the gateway sees the client go and frees both models. */
export function cancel() {
  state.running?.abort.abort();
}
