// The chats that this browser keeps. Nothing here touches the page.
//
// A chat is a tree of messages: each names the one before it by its index (`parent`, -1 for the first), so a question
// that is edited or an answer that is written again is a further version beside the old one. `shown` is the last
// message of the path that is on the page.

import { forget, keep, kept, restOf, restsOf } from "./store.js";

const CHAT = "chat."; // begins the name under which a chat is kept; its id follows
const TITLE_CHARACTERS = 60; // of a first question; what a sidebar shows of it is less

const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

/** Return a chat with nothing said yet. */
export const newChat = (system = "") => ({
  id: newId(),
  name: "",
  system,
  changed: Date.now(),
  shown: -1,
  messages: [],
});

/** Give a chat another id, so that it is kept beside the one that has its old id. */
export const setApart = (chat) => Object.assign(chat, { id: newId() });

/** Return the name of a chat: the one it was given, or how its first question begins. */
export function titleOf(chat) {
  const first = chat.name || (chat.messages[0]?.content.trim().split("\n")[0] ?? "");
  return first.length > TITLE_CHARACTERS ? `${first.slice(0, TITLE_CHARACTERS)} …` : first || "New chat";
}

/** Say whether words are in the title or in a message. */
export function holds(chat, words) {
  const wanted = words.trim().toLowerCase();
  const texts = [titleOf(chat), ...chat.messages.map((each) => each.content)];
  return !wanted || texts.some((each) => each.toLowerCase().includes(wanted));
}

// --- The tree ---

/** Return the indices of the messages that are shown, the first one first. */
export function pathOf(chat) {
  const path = [];
  for (let i = chat.shown; i >= 0; i = chat.messages[i].parent) path.unshift(i);
  return path;
}

/** Return the indices of all versions of a message, the oldest first. */
export function versionsOf(chat, index) {
  const { parent } = chat.messages[index];
  return chat.messages.map((each, i) => (each.parent === parent ? i : -1)).filter((i) => i >= 0);
}

/** Add a message behind another, show it and return its index. */
export function addMessage(chat, parent, message) {
  chat.shown = chat.messages.push({ parent, ...message }) - 1;
  return chat.shown;
}

/** Take back a message of which nothing came, where it is the newest. */
export function takeBack(chat, message) {
  if (chat.messages.at(-1) === message) chat.shown = chat.messages.pop().parent;
}

/** Show a version of a message, and the newest version of each message behind it. */
export function showVersion(chat, index) {
  const newestBehind = (i) => chat.messages.findLastIndex((each) => each.parent === i);
  for (let i = index; i >= 0; i = newestBehind(i)) chat.shown = i;
}

// --- Kept ---

const isText = (value) => typeof value === "string";
const isCall = (each) => isText(each?.name) && isText(each.arguments);
const isMessage = (each, i) =>
  ["user", "assistant"].includes(each?.role) &&
  isText(each.content) &&
  isText(each.thoughts ?? "") &&
  (each.calls === undefined || (Array.isArray(each.calls) && each.calls.every(isCall))) &&
  isText(each.end ?? "") &&
  Number.isFinite(each.tokens ?? 0) &&
  Number.isFinite(each.seconds ?? 0) &&
  Number.isInteger(each.parent) &&
  each.parent >= -1 &&
  each.parent < i;

/** Say whether a value is a chat as one is kept. */
export const isChat = (each) =>
  [each?.id, each?.name, each?.system].every(isText) &&
  Number.isFinite(each.changed) &&
  Array.isArray(each.messages) &&
  each.messages.every(isMessage) &&
  Number.isInteger(each.shown) &&
  each.shown >= -1 &&
  each.shown < each.messages.length;

/** Return the chats that are kept, the last one to change first. */
export function loadChats() {
  const chats = restsOf(CHAT).map(chatOf).filter(Boolean);
  return chats.sort((a, b) => b.changed - a.changed);
}

/** Return the chat that is kept under an id; null where there is none. */
export function chatOf(id) {
  const found = kept(CHAT + id);
  return isChat(found) ? found : null;
}

/** Keep a chat and say whether there was room for it. */
export const saveChat = (chat) => keep(CHAT + chat.id, chat);

export const forgetChat = (chat) => forget(CHAT + chat.id);

/** Return the id of the chat that a key of the browser's storage stands for; null for other keys. */
export const idOf = (key) => restOf(key, CHAT);
