// The settings: kept over reloads, and shown where they are needed, beside the instrument or before the chat.

import { at } from "./base.js";
import { keep, kept } from "./store.js";

const LIMITS = { chat: "chat-limit", instrument: "n-predict" }; // of tokens, each for the texts of one view
const PLACES = ["settings", "chat-only"]; // elements with settings in them
const FIELDS = PLACES.map((id) => `#${id} :is(input, select, textarea):not(#system, #theme)`).join();

const fields = () => [...document.querySelectorAll(FIELDS)];
const valueOf = (each) => (each.type === "checkbox" ? each.checked : each.value);
const initial = new Map(); // the value of each field that the page brings

function fill(values) {
  for (const each of fields()) {
    const value = typeof values[each.id] === typeof valueOf(each) ? values[each.id] : initial.get(each.id);
    if (each.type === "checkbox") each.checked = value;
    else each.value = value;
  }
}

/** Keep every setting that is not as the page brings it. */
function keepSettings() {
  const changed = fields().filter((each) => valueOf(each) !== initial.get(each.id));
  keep("settings", Object.fromEntries(changed.map((each) => [each.id, valueOf(each)])));
}

/** Fill in what was kept, and keep what changes from now on; `onChange` shows what depends on it. */
export function startSettings(onChange) {
  const changed = () => {
    keepSettings();
    onChange();
  };
  for (const each of fields()) initial.set(each.id, valueOf(each));
  fill(kept("settings") ?? {});
  for (const id of PLACES) at(id).addEventListener("change", changed);
  at("reset-settings").addEventListener("click", () => {
    fill({});
    changed();
  });
}

/** Put the settings where a view has a place for them; how to draft matters to the instrument first. */
export function placeSettings(view) {
  at(`${view}-settings-place`).append(at("settings"));
  at("drafting").open = view === "instrument";
  for (const [each, id] of Object.entries(LIMITS)) at(id).disabled = each !== view; // a limit that is not seen stops nothing
}
