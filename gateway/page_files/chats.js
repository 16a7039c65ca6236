// The chats that this browser remembers: nothing of them is kept anywhere else.

const KEY = "outrider.chats";
const MOST_CHATS = 50;
const MOST_CHARACTERS = 1_000_000; // browsers give a page some 5 MB, two bytes a character

/** Return a chat with nothing said yet. */
export const newChat = (system = "") => ({ id: crypto.randomUUID?.() ?? String(Math.random()), system, messages: [] });

/** Return the name of a chat: how its first question begins. */
export function titleOf(chat) {
  const first = chat.messages[0]?.content.trim().split("\n")[0] ?? "";
  return first ? (first.length > 48 ? `${first.slice(0, 48)} …` : first) : "New chat";
}

const isMessage = (each) =>
  ["user", "assistant"].includes(each?.role) && typeof each.content === "string";
const isChat = (each) =>
  typeof each?.id === "string" &&
  typeof each.system === "string" &&
  Array.isArray(each.messages) &&
  each.messages.every(isMessage);

/** Return the remembered chats, the newest first; [] where the browser keeps nothing. */
export function loadChats() {
  try {
    const chats = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(chats) ? chats.filter(isChat) : [];
  } catch {
    return [];
  }
}

/** Remember these chats; the oldest are forgotten until the others fit. */
export function saveChats(chats) {
  let kept = chats.filter((chat) => chat.messages.length).slice(0, MOST_CHATS);
  for (;;) {
    const text = JSON.stringify(kept);
    try {
      if (text.length <= MOST_CHARACTERS || kept.length <= 1) return localStorage.setItem(KEY, text);
    } catch {
      if (!kept.length) return; // this browser keeps nothing for pages
    }
    kept = kept.slice(0, -1);
  }
}
