// The messages of the chat that is shown: each is drawn once, and again only where it changed.

import { at, count, fixed, make, ratio } from "./base.js";
import { pathOf, versionsOf } from "./chats.js";
import { GrowingText } from "./growing.js";
import { patch } from "./patch.js";
import { state } from "./state.js";

const NEAR = "1500px"; // above and below what is seen; messages that come so near are drawn as Markdown
const END_PIXELS = 80; // from the end; who is so near follows what comes
const REST = 8; // times as long as a drawing of Markdown took, nothing is drawn: the page stays quick

const NOTES = {
  limit: "The answer reached its token limit.",
  context: "The context is full.",
  stopped: "Stopped.",
  failed: "The answer broke off.",
};

const views = new WeakMap(); // a message to its elements, in whichever chat it is
const generations = new WeakMap(); // an answer to the generation that wrote it, as long as the page is open

export const rememberGeneration = (message, generation) => generations.set(message, generation);
export const generationOf = (message) => generations.get(message);

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) drawNow(target.message);
  },
  { root: at("messages"), rootMargin: `${NEAR} 0px` },
);

// --- One message ---

function viewOf(message) {
  if (views.has(message)) return views.get(message);
  const isUser = message.role === "user";
  const body = make("div", { classes: "body" }, message.content);
  const parts = [body, make("footer")];
  const view = { body, foot: parts[1], text: message.content, restsUntil: 0, footKey: "" };
  if (!isUser) {
    view.thoughts = make("pre", { tabindex: "0" });
    view.thinking = make("details", { classes: "thoughts" }, make("summary", {}, "Thoughts"), view.thoughts);
    view.calls = make("div", { classes: "calls" });
    body.classList.add("plain");
    view.growing = new GrowingText(body);
    view.text = null; // as Markdown nothing is drawn yet
    parts.splice(0, 1, view.thinking, body, view.calls);
  }
  const classes = `message ${message.role}`;
  view.element = make("article", { classes, "aria-label": isUser ? "You" : "Model" }, ...parts);
  view.element.message = message;
  views.set(message, view);
  if (!isUser) near.observe(view.element);
  return view;
}

function callElement({ name, arguments: given }) {
  const text = make("code", {}, given || "{}");
  return make("div", { classes: "call" }, make("small", {}, "calls "), make("code", {}, name), make("pre", {}, text));
}

/** Draw what an answer says; one that grows not before the last drawing has paid off. Says whether it did. */
function drawAnswer(message, grows) {
  const view = views.get(message);
  const { content, thoughts = "", calls = [] } = message;
  if (view.thoughts.textContent !== thoughts) view.thoughts.textContent = thoughts;
  view.thinking.hidden = !thoughts;
  const isThinking = Boolean(thoughts && !content && !calls.length);
  if (message === state.answering && isThinking !== view.isThinking) view.thinking.open = isThinking; // folded after
  view.isThinking = isThinking;
  patch(view.calls, calls.map(callElement));
  const begin = performance.now();
  if (view.text === content && (grows || view.isWhole)) return true;
  if (grows && begin < view.restsUntil) return false;
  if (view.text === null) view.body.textContent = "";
  if (grows) view.growing.draw(content);
  else view.growing.drawWhole(content);
  view.isWhole = !grows;
  view.body.classList.remove("plain");
  view.text = content;
  view.restsUntil = begin + REST * (performance.now() - begin);
  return true;
}

/** Draw what came to an answer while it was not on the page. */
function drawAgain(message) {
  if (message.role === "assistant") drawAnswer(message, false);
}

function drawNow(message) {
  drawAnswer(message, false);
  near.unobserve(views.get(message).element);
}

// --- What stands below a message ---

const button = (act, label, hint = "") =>
  make("button", { type: "button", classes: "small", "data-act": act, ...(hint && { "aria-label": hint }) }, label);

// The gateway continues no answer that ends in calls.
const canContinue = ({ end, calls = [] }) => ["limit", "stopped", "failed"].includes(end) && !calls.length;

function buttonsOf(message, isLast) {
  const isUser = message.role === "user";
  if (message === state.answering) return [];
  return [
    button("copy", "Copy"),
    isUser && button("edit", "Edit"),
    isUser && isLast && button("again", "Ask again"),
    !isUser && button("again", "Regenerate"),
    !isUser && isLast && canContinue(message) && button("continue", "Continue"),
    !isUser && generationOf(message) && button("tokens", "Tokens", "Show the tokens of this answer"),
  ].filter(Boolean);
}

function versionButtons(versions, index) {
  const number = versions.indexOf(index) + 1;
  if (versions.length < 2) return [];
  const before = button("before", "‹", "Version before");
  const after = button("after", "›", "Version after");
  before.disabled = number === 1;
  after.disabled = number === versions.length;
  return [make("span", { classes: "versions" }, before, ` ${number} / ${versions.length} `, after)];
}

export function speedOf({ tokens = 0, seconds = 0 }) {
  const rate = fixed(ratio(tokens - 1, seconds), 1);
  return seconds > 0 && tokens > 1 ? `${count(tokens, "token")}, ${rate} tokens/s` : "";
}

function drawFoot(chat, index, isLast) {
  const message = chat.messages[index];
  const view = viewOf(message);
  const versions = versionsOf(chat, index);
  const isLive = message === state.answering;
  const parts = [versions.length, isLast, isLive, message.end, message.tokens, generationOf(message)?.first];
  const key = parts.join();
  view.element.dataset.index = index;
  if (key === view.footKey) return;
  view.footKey = key;
  const note = !isLive && Object.hasOwn(NOTES, message.end) ? NOTES[message.end] : "";
  const tools = make("span", { classes: "tools" }, ...buttonsOf(message, isLast));
  view.speed = make("small", { classes: "speed" }, speedOf(message));
  view.foot.replaceChildren(
    ...(note ? [make("p", { classes: "cut-note" }, note)] : []),
    ...versionButtons(versions, index),
    tools,
    ...(message.role === "user" ? [] : [view.speed]),
  );
}

// --- All of them ---

const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < END_PIXELS;

/** Show the path of a chat: what is there stays, and what changed is drawn. */
export function showMessages(chat) {
  const box = at("messages");
  const follows = isAtEnd(box);
  const path = pathOf(chat);
  const elements = path.map((i) => viewOf(chat.messages[i]).element);
  const same = elements.findIndex((each, i) => each !== box.children[i]);
  if (same >= 0 || box.children.length > elements.length) {
    const kept = same < 0 ? elements.length : same;
    for (const each of [...box.children].slice(kept)) each.remove();
    box.append(...elements.slice(kept));
    for (const i of path.slice(kept)) if (views.get(chat.messages[i]).text !== null) drawAgain(chat.messages[i]);
  }
  path.forEach((index, i) => drawFoot(chat, index, i === path.length - 1));
  if (follows) box.scrollTop = box.scrollHeight;
}

/** Scroll to the last message; once more where the sizes of what is seen there were only estimates. */
export function scrollToEnd() {
  const box = at("messages");
  const scroll = () => (box.scrollTop = box.scrollHeight);
  scroll();
  requestAnimationFrame(() => requestAnimationFrame(scroll));
}

let isDrawing = false; // whether the next frame draws the answer that comes

/** Draw an answer that grows, before the next frame. */
export function showGrowth(message) {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    const view = views.get(message);
    if (!view?.element.isConnected) return;
    const box = at("messages");
    const follows = isAtEnd(box);
    const isWhole = message !== state.answering;
    const isDrawn = drawAnswer(message, !isWhole);
    view.speed.textContent = speedOf(message);
    if (follows) box.scrollTop = box.scrollHeight;
    if (!isDrawn) showGrowth(message);
  });
}
