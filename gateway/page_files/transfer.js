// Chats as files: out of this browser and into it again.

import { make } from "./base.js";
import { isChat, pathOf, titleOf } from "./chats.js";

const VERSION = 1; // of the file; another one is not read

/** Return chats as the text of a file. */
export const chatsAsJson = (chats) => JSON.stringify({ outrider_chats: VERSION, chats }, null, 1);

/** Return the chats of a file. Raises Error where it is none of ours. */
export function readChats(text) {
  let file = null;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const chats = Array.isArray(file?.chats) ? file.chats : [];
  if (file?.outrider_chats !== VERSION || !chats.every(isChat))
    throw new Error("The file has no chats of this page.");
  return chats;
}

/** Return what is shown of a chat as Markdown. */
export function chatAsMarkdown(chat) {
  const said = pathOf(chat).map((i) => {
    const { role, content, calls = [] } = chat.messages[i];
    const called = calls.map((call) => `\`${call.name}(${call.arguments})\``);
    return [`## ${role === "user" ? "You" : "Model"}`, content, ...called].filter(Boolean).join("\n\n");
  });
  return `${[`# ${titleOf(chat)}`, ...said].join("\n\n")}\n`;
}

/** Let the browser save a text as a file. */
export function saveFile(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
