// The two views of the page, the chat and the instrument, and which of them is seen.

import { at, call } from "./base.js";
import { hideTip, redraw } from "./instrument.js";
import { placeSettings } from "./settings.js";
import { state } from "./state.js";

const VIEWS = ["chat", "instrument"];
const STANDS_IN =
  "This model has no chat template of its own. ChatML stands in, which it may never have seen: answers may be nonsense.";

let known = ""; // the model whose properties were asked for

const viewOfAddress = () => VIEWS.find((each) => location.hash === `#${each}`);

/** Show a view, and let the address say so: the browser's own button leads back. */
export function showView(name) {
  if (viewOfAddress() !== name) history.pushState(null, "", `#${name}`);
  display(name);
}

function display(name) {
  for (const each of VIEWS) {
    const isShown = each === name;
    at(`${each}-view`).hidden = !isShown;
    at(`${each}-tab`).setAttribute("aria-selected", isShown);
    at(`${each}-tab`).tabIndex = isShown ? 0 : -1;
  }
  document.body.dataset.view = name;
  placeSettings(name);
  hideTip();
  redraw();
}

function onTabKey(event) {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const next = event.target.id === "chat-tab" ? "instrument" : "chat";
  showView(next);
  at(`${next}-tab`).focus();
}

/** Name the model, and see whether it has a chat template; without one `/` is the instrument. */
export async function showModel(name) {
  document.title = name ? `${name} – Outrider` : "Outrider";
  at("model").textContent = name;
  if (!name || name === known) return;
  known = name;
  try {
    state.standsIn = Boolean((await (await call("props")).json()).chat_template_stands_in);
  } catch {
    known = ""; // asked again with the next status
  }
  at("chat-note").textContent = state.standsIn ? STANDS_IN : "";
  if (state.standsIn && !viewOfAddress()) display("instrument");
}

/** Join the views to their tabs and show the one that the address names. */
export function startViews() {
  for (const each of VIEWS) {
    at(`${each}-tab`).addEventListener("click", () => showView(each));
    at(`${each}-tab`).addEventListener("keydown", onTabKey);
  }
  addEventListener("popstate", () => display(viewOfAddress() ?? "chat"));
  display(viewOfAddress() ?? "chat");
}
