// The sidebar: the chats of this browser, found by words, opened, renamed, deleted and brought back.

import { at, count, leaves, make } from "./base.js";
import { holds, titleOf } from "./chats.js";

const UNDO_MILLISECONDS = 15_000; // deleted chats can be brought back for so long after the last one

const offered = []; // the deleted chats that can be brought back
let undoTimer = 0;

function itemOf(chat, isShown) {
  const title = titleOf(chat);
  const name = make("button", { type: "button", classes: "chat-name", "data-act": "open", title }, title);
  if (isShown) name.setAttribute("aria-current", "true");
  const act = (what, sign, label) =>
    make("button", { type: "button", classes: "small quiet", "data-act": what, "aria-label": `${label} ${title}` }, sign);
  return make("li", { "data-id": chat.id }, name, act("rename", "✎", "Rename"), act("delete", "✕", "Delete"));
}

/** List the chats that hold the words of the search; not while one is renamed. */
export function showChats(chats, shown) {
  if (at("chats").querySelector("input")) return;
  const found = chats.filter((each) => holds(each, at("search").value));
  at("chats").replaceChildren(...found.map((each) => itemOf(each, each === shown)));
  at("no-chats").hidden = found.length > 0;
  at("no-chats").textContent = chats.length ? "No chat has these words." : "No chats yet.";
}

/** Put a field in place of a chat's name; `done` gets what was typed, once. */
function rename(item, title, done) {
  const field = make("input", { "aria-label": "Name of the chat", maxlength: "80" });
  let isOpen = true;
  const close = (name, byKey = false) => {
    if (!isOpen) return;
    isOpen = false;
    field.remove();
    done(name);
    if (byKey) at("chats").querySelector(`[data-id="${CSS.escape(item.dataset.id)}"] .chat-name`)?.focus();
  };
  field.value = title;
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) close(field.value.trim(), true);
    if (!leaves(event)) return;
    event.stopPropagation();
    close("", true);
  });
  field.addEventListener("blur", () => close(field.value.trim()));
  item.querySelector(".chat-name").replaceWith(field);
  field.select();
}

/** Offer to bring back a deleted chat, with those that are offered already; the offer ends by itself. */
export function offerUndo(chat, bringBack) {
  clearTimeout(undoTimer);
  offered.push(chat);
  const what = offered.length > 1 ? count(offered.length, "chat") : `“${titleOf(chat)}”`;
  const button = make("button", { type: "button", classes: "small" }, "Undo");
  const close = () => {
    at("undo").replaceChildren();
    return offered.splice(0);
  };
  button.addEventListener("click", () => bringBack(close()));
  at("undo").replaceChildren(make("span", {}, `Deleted ${what}.`), button);
  button.focus();
  undoTimer = setTimeout(close, UNDO_MILLISECONDS);
}

/** Open or close the drawer that the sidebar is on a phone. */
export function showDrawer(isOpen) {
  document.body.classList.toggle("drawer", isOpen);
  at("menu").setAttribute("aria-expanded", isOpen);
  at("conversation").inert = isOpen;
  if (isOpen) at("new-chat").focus();
}

/** Join the sidebar to what its buttons do: `on.open`, `on.remove`, `on.rename` get the id of a chat. */
export function startSidebar(on) {
  at("chats").addEventListener("click", (event) => {
    const item = event.target.closest("li");
    const act = event.target.closest("button")?.dataset.act;
    if (act === "open") {
      showDrawer(false);
      on.open(item.dataset.id);
    }
    if (act === "delete") on.remove(item.dataset.id);
    if (act === "rename")
      rename(item, item.querySelector(".chat-name").textContent, (name) => on.rename(item.dataset.id, name));
  });
  at("search").addEventListener("input", on.search);
  at("menu").addEventListener("click", () => showDrawer(!document.body.classList.contains("drawer")));
  matchMedia("(max-width: 48rem)").addEventListener("change", () => showDrawer(false)); // where it is no drawer, or becomes one
  for (const id of ["shade", "close-menu"]) at(id).addEventListener("click", () => showDrawer(false));
}
