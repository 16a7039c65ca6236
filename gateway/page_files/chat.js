// The chat: asks the model's own template for the prompt, and generates behind it like the form does.

import { at, call, make, setText } from "./base.js";
import { loadChats, newChat, saveChats, titleOf } from "./chats.js";
import { markdown } from "./markdown.js";
import { run, showFailure } from "./run.js";
import { readSettings, settingsAreValid } from "./sampling.js";
import { state } from "./state.js";

let chats = []; // those remembered, the newest first
let chat = newChat(); // the one on the page, which is among `chats` once something was said
let answering = false; // from a question until its answer is whole: the chat cannot be changed then

// --- What is shown ---

function messageElement(message) {
  const body = message.role === "user" ? [message.content] : markdown(message.content);
  const name = message.role === "user" ? "You" : "Model";
  const note = message.cut ? make("small", { classes: "cut-note" }, "cut off") : "";
  return make(
    "article",
    { classes: `message ${message.role}`, "aria-label": name },
    make("div", { classes: "body" }, ...body),
    note,
  );
}

function showMessages() {
  at("messages").replaceChildren(...chat.messages.map(messageElement));
  at("messages").scrollTop = at("messages").scrollHeight;
  at("regenerate").hidden = !chat.messages.length;
}

/** Show the last message anew, as it grows. */
function showLast() {
  const box = at("messages");
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  box.lastElementChild.replaceWith(messageElement(chat.messages.at(-1)));
  if (follows) box.scrollTop = box.scrollHeight;
}

function showChats() {
  const listed = chats.includes(chat) ? chats : [chat, ...chats];
  at("chats").replaceChildren(
    ...listed.map((each) => make("option", { value: each.id }, titleOf(each))),
  );
  at("chats").value = chat.id;
  at("system").value = chat.system;
}

function open(next) {
  if (answering) return;
  chat = next;
  showChats();
  showMessages();
}

function remember() {
  if (!chats.includes(chat)) chats.unshift(chat);
  saveChats(chats);
}

// --- Asking ---

/** Ask for the answer to the last question. */
async function answer() {
  answering = true;
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  const messages = [...system, ...chat.messages.map(({ role, content }) => ({ role, content }))];
  const reply = { role: "assistant", content: "" };
  try {
    const settings = readSettings();
    const body = JSON.stringify({ messages });
    const { prompt } = await (await call("apply-template", { method: "POST", body })).json();
    chat.messages.push(reply);
    at("messages").append(messageElement(reply));
    let drawn = true;
    const generation = await run({ ...settings, prompt }, "", (text) => {
      reply.content = text;
      if (!drawn) return;
      drawn = false;
      requestAnimationFrame(() => {
        drawn = true;
        showLast();
      });
    });
    reply.content = generation.text;
    if (generation.end?.stop_type !== "eos" && generation.end?.stop_type !== "word") reply.cut = true;
    if (!reply.content && !generation.end) chat.messages.pop();
  } catch (error) {
    if (error instanceof SyntaxError) setText("alert", `The JSON schema cannot be read: ${error.message}`);
    else showFailure(error);
  }
  answering = false;
  remember();
  showMessages();
}

async function send(event) {
  event.preventDefault();
  const question = at("question").value.trim();
  if (!question || answering || state.running || !settingsAreValid()) return;
  at("question").value = "";
  chat.messages.push({ role: "user", content: question });
  remember();
  showChats();
  showMessages();
  await answer();
}

/** Ask the last question again, in place of its answer. */
async function regenerate() {
  if (answering || state.running || !settingsAreValid()) return;
  while (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
  if (!chat.messages.length) return;
  showMessages();
  await answer();
}

function forget() {
  if (answering) return;
  chats = chats.filter((each) => each !== chat);
  saveChats(chats);
  open(chats[0] ?? newChat());
}

async function copyCode(event) {
  const button = event.target.closest(".copy-code");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.closest(".code").querySelector("code").textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
}

/** Join the chat to its elements and show the newest one. */
export function startChat() {
  chats = loadChats();
  open(chats[0] ?? newChat());
  at("chat-form").addEventListener("submit", send);
  at("regenerate").addEventListener("click", regenerate);
  at("new-chat").addEventListener("click", () => open(newChat(chat.system)));
  at("forget-chat").addEventListener("click", forget);
  at("chats").addEventListener("change", (event) => {
    const wanted = chats.find((each) => each.id === event.target.value);
    if (wanted) open(wanted);
    else showChats();
  });
  at("system").addEventListener("change", (event) => {
    chat.system = event.target.value;
    if (chats.includes(chat)) saveChats(chats);
  });
  at("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    at("chat-form").requestSubmit();
  });
  at("messages").addEventListener("click", copyCode);
}
