// The chat: which one is shown, what is said in it, and what the buttons of its messages do.

import { at, setText } from "./base.js";
import { answer, newAnswer } from "./answering.js";
import {
  addMessage,
  chatOf,
  forgetChat,
  idOf,
  loadChats,
  newChat,
  pathOf,
  saveChat,
  setApart,
  showVersion,
  titleOf,
  versionsOf,
} from "./chats.js";
import { emptyComposer, focusComposer, startComposer, typed } from "./composer.js";
import { edit } from "./editing.js";
import { generationOf, scrollToEnd, showMessages } from "./messages.js";
import { cancel } from "./run.js";
import { settingsAreValid } from "./sampling.js";
import { offerUndo, showChats, showDrawer, startSidebar } from "./sidebar.js";
import { state } from "./state.js";
import { keep, keepsAnything, kept } from "./store.js";
import { chatAsMarkdown, chatsAsJson, readChats, saveFile } from "./transfer.js";
import { showView } from "./views.js";

const UNKEPT = keepsAnything()
  ? "This browser has no room for more: export chats and delete some, or this one is lost with the page."
  : "This browser keeps nothing for pages: export this chat, or it is lost with the page.";

let chats = []; // those remembered, the newest first
let chat = null; // the one on the page, which is among `chats` once something was said
const unsaved = new WeakSet(); // chats that changed since they were kept

function emptyChat() {
  const system = kept("system");
  return newChat(typeof system === "string" ? system : "");
}

const isBusy = () => Boolean(state.running);
const byId = (id) => chats.find((each) => each.id === id);

// --- What is shown ---

function showAll() {
  showChats(chats, chat);
  showMessages(chat);
}

function open(next) {
  chat = next;
  at("system").value = chat.system;
  at("messages").replaceChildren();
  showAll();
  scrollToEnd();
}

function list(each) {
  if (!chats.includes(each)) chats.push(each);
  chats.sort((a, b) => b.changed - a.changed);
}

/** Keep the chats that are not kept yet; the page says where some are left, unless it says why something failed. */
function keepAll() {
  for (const each of chats) if (unsaved.has(each) && saveChat(each)) unsaved.delete(each);
  const areLeft = chats.some((each) => unsaved.has(each));
  if (["", UNKEPT].includes(at("alert").textContent)) setText("alert", areLeft ? UNKEPT : "");
}

function remember(changed) {
  list(changed);
  unsaved.add(changed);
  keepAll();
}

/** Take a chat in from elsewhere, beside one that has its id. */
function take(each) {
  remember(byId(each.id) ? setApart(each) : each);
}

function start() {
  open(emptyChat());
  showDrawer(false);
  focusComposer();
}

// --- What is said ---

/** Have a message of the shown chat answered, or an answer continued. */
async function write(index) {
  const asked = chat;
  asked.changed = Date.now(); // tells other tabs that something is written in it
  remember(asked);
  try {
    await answer(asked, index, () => {
      if (asked === chat) showAll();
    });
  } catch (error) {
    setText("alert", `The tools or the JSON schema cannot be read: ${error.message}`);
  }
  if (chats.includes(asked)) remember(asked);
  const focused = document.activeElement;
  if (focused === document.body || !focused.checkVisibility()) focusComposer(); // the button that was pressed is gone
}

async function say(parent, content) {
  const question = addMessage(chat, parent, { role: "user", content });
  const index = newAnswer(chat, question);
  const writing = write(index);
  scrollToEnd();
  await writing;
}

/** Say another question in place of one, and say whether that can be done now. */
function sayInstead(index, content) {
  if (isBusy() || !settingsAreValid()) return false;
  say(chat.messages[index].parent, content);
  return true;
}

async function send(event) {
  event.preventDefault();
  const question = typed();
  if (!question || isBusy() || !settingsAreValid()) return;
  emptyComposer();
  await say(chat.shown, question);
}

// --- What the buttons below a message do ---

const again = (index) => {
  const isUser = chat.messages[index].role === "user";
  return write(newAnswer(chat, isUser ? index : chat.messages[index].parent));
};

function step(index, by, act) {
  const versions = versionsOf(chat, index);
  const wanted = versions[versions.indexOf(index) + by] ?? index;
  showVersion(chat, wanted);
  remember(chat);
  showMessages(chat);
  const buttons = `#messages [data-index="${wanted}"] .versions`;
  const same = document.querySelector(`${buttons} [data-act="${act}"]:not(:disabled)`);
  (same ?? document.querySelector(`${buttons} button:not(:disabled)`)).focus();
}

const ACTS = {
  edit: (index, article) => edit(article, chat.messages[index].content, (text) => sayInstead(index, text)),
  again,
  continue: write,
  before: (index) => step(index, -1, "before"),
  after: (index) => step(index, 1, "after"),
};

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
}

function onMessageClick(event) {
  const button = event.target.closest("button");
  if (!button) return;
  const article = button.closest(".message");
  if (button.matches(".copy-code")) return copy(button, button.closest(".code").querySelector("code").textContent);
  const index = Number(article.dataset.index);
  const { act } = button.dataset;
  if (act === "copy") return copy(button, chat.messages[index].content);
  if (act === "tokens") {
    state.generation = generationOf(chat.messages[index]);
    return showView("instrument");
  }
  if (act in ACTS && !isBusy() && settingsAreValid()) ACTS[act](index, article);
}

// --- Deleted, renamed, brought from elsewhere ---

function remove(id) {
  const removed = byId(id);
  const place = chats.indexOf(removed);
  if (isBusy() && removed.messages.includes(state.answering)) cancel();
  chats = chats.filter((each) => each !== removed);
  forgetChat(removed);
  keepAll(); // in the room that it leaves
  if (removed === chat) open(chats[place] ?? chats.at(-1) ?? emptyChat());
  else showChats(chats, chat);
  offerUndo(removed, (all) => {
    all.forEach(take);
    open(removed);
  });
}

function rename(id, name) {
  const renamed = byId(id);
  if (name && name !== titleOf(renamed)) renamed.name = name;
  remember(renamed);
  showChats(chats, chat);
}

async function bring(event) {
  const [file] = event.target.files;
  setText("alert", ""); // of the file before
  try {
    const brought = readChats(await file.text());
    brought.forEach(take);
    open(brought[0] ?? chat);
  } catch (error) {
    setText("alert", error.message);
  }
  event.target.value = "";
}

// --- Joined ---

function keepSystem() {
  chat.system = at("system").value;
  keep("system", chat.system);
  if (chats.includes(chat)) remember(chat);
}

/** Keep what there is of an answer when the page is closed. */
function keepAnswer() {
  const asked = chats.find((each) => each.messages.includes(state.answering));
  if (asked) saveChat(asked);
}

/** Take in what another tab of this browser did to a chat; one that is answered here stays as it is here. */
function follow({ key }) {
  const id = idOf(key);
  if (id === null) return;
  const own = byId(id);
  const theirs = chatOf(id);
  const stays = own?.messages.includes(state.answering);
  if (stays && (!theirs || theirs.changed === own.changed)) return;
  if (stays) remember(setApart(own)); // both tabs write in it: each keeps what comes
  else chats = chats.filter((each) => each !== own);
  if (theirs) list(theirs);
  if (own && own === chat && !stays) open(theirs ?? emptyChat());
  else showChats(chats, chat);
}

/** Join the chat to its elements and show the newest one. */
export function startChat() {
  chats = loadChats();
  startSidebar({
    open: (id) => {
      open(byId(id));
      focusComposer();
    },
    remove,
    rename,
    search: () => showChats(chats, chat),
  });
  open(chats[0] ?? emptyChat());
  startComposer();
  addEventListener("storage", follow);
  at("new-chat").addEventListener("click", start);
  at("chat-form").addEventListener("submit", send);
  at("system").addEventListener("change", keepSystem);
  at("messages").addEventListener("click", onMessageClick);
  at("import").addEventListener("change", bring);
  at("export-chat").addEventListener("click", () => saveFile("chat.json", "application/json", chatsAsJson([chat])));
  at("export-markdown").addEventListener("click", () => saveFile("chat.md", "text/markdown", chatAsMarkdown(chat)));
  at("export-all").addEventListener("click", () => saveFile("chats.json", "application/json", chatsAsJson(chats)));
  addEventListener("pagehide", keepAnswer);
}
