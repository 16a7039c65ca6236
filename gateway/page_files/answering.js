// Asks for answers: a chat up to one of its messages to a request, and what comes into the message.

import { at } from "./base.js";
import { addMessage, pathOf, takeBack } from "./chats.js";
import { rememberGeneration, showGrowth } from "./messages.js";
import { run } from "./run.js";
import { readSettings } from "./sampling.js";
import { state } from "./state.js";

const CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]; // a model that never saw ChatML writes them as text

const callOf = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });

function turnOf({ role, content, calls }) {
  return { role, content, ...(calls?.length && { tool_calls: calls.map(callOf) }) };
}

/** Return the request for an answer, which is continued where something of it is there. Raises SyntaxError. */
function requestFor(chat, index) {
  const answer = chat.messages[index];
  const path = pathOf({ ...chat, shown: answer.parent });
  const messages = path.map((i) => turnOf(chat.messages[i]));
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  const { n_predict: ofWrite, ...settings } = readSettings();
  const request = { ...settings, messages };
  if (at("chat-limit").value !== "") request.max_tokens = at("chat-limit").valueAsNumber;
  if (at("chat-tools").value.trim()) request.tools = JSON.parse(at("chat-tools").value);
  if (state.standsIn) request.stop = [...(request.stop ?? []), ...CHATML_MARKS];
  if (answer.content || answer.thoughts) {
    messages.push({ ...turnOf(answer), ...(answer.thoughts && { reasoning_content: answer.thoughts }) });
    request.continue_final_message = true;
  }
  return request;
}

/** Take in what a chunk adds to a message. */
function takeDelta(message, { content, reasoning_content: thought, tool_calls: calls = [] }) {
  if (thought) message.thoughts = (message.thoughts ?? "") + thought;
  if (content) message.content += content;
  for (const { index, id, function: named } of calls) {
    message.calls ??= [];
    message.calls[index] ??= { id, name: named.name, arguments: "" };
    message.calls[index].arguments += named.arguments ?? "";
  }
}

function endOf(generation, request) {
  if (!generation.end) return generation.abort.signal.aborted ? "stopped" : "failed";
  if (generation.end.stop_type !== "limit") return "done";
  return request.max_tokens >= 0 ? "limit" : "context";
}

/**
 * Have an answer written into a message of a chat; `show` is called where its state changes. Raises SyntaxError for
 * tools or a schema that are no JSON.
 */
export async function answer(chat, index, show) {
  const message = chat.messages[index];
  const before = { tokens: message.tokens ?? 0, seconds: message.seconds ?? 0 };
  const isNew = !message.content && !message.thoughts;
  let request = null;
  try {
    request = requestFor(chat, index);
  } catch (error) {
    if (isNew) takeBack(chat, message);
    show();
    throw error;
  }
  message.end = "stopped"; // as long as it is written: the page may be closed
  state.answering = message;
  const count = (tokens, seconds) => {
    message.tokens = before.tokens + tokens;
    message.seconds = before.seconds + seconds;
  };
  const running = run("v1/chat/completions", request, message.content, (event, { tokens, first, last }) => {
    takeDelta(message, event.choices?.[0]?.delta ?? {});
    count(tokens.length, (last - first) / 1000);
    showGrowth(message);
  });
  show();
  const generation = await running;
  state.answering = null;
  if (generation.end) count(generation.numbers.generated, generation.numbers.elapsed);
  message.end = endOf(generation, request);
  chat.changed = Date.now();
  if (generation.tokens.length) rememberGeneration(message, generation);
  else if (isNew && !generation.end) takeBack(chat, message);
  showGrowth(message);
  show();
}

/** Return the index of a new answer behind a message. */
export const newAnswer = (chat, parent) => addMessage(chat, parent, { role: "assistant", content: "" });
