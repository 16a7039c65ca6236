// Joins the parts of the page to its elements.

import { at, leaves, say, setText } from "./base.js";
import { startChat } from "./chat.js";
import { focusToken, hideTip, moveInText, placeTip, redraw, showTip } from "./instrument.js";
import { poll, useKey } from "./peers.js";
import { cancel, run } from "./run.js";
import { readSettings, settingsAreValid, showSamplers } from "./sampling.js";
import { startSettings } from "./settings.js";
import { showDrawer } from "./sidebar.js";
import { state } from "./state.js";
import { startViews } from "./views.js";

const RULES = {
  "": "Match at temperature 0, shared noise above it.",
  match: "Accepts a draft token that equals the target's choice.",
  "shared-noise": "Both models sample with the same noise; accepts where they draw the same token.",
  rejection: "Accepts with probability min(1, p/q), and draws anew from what is left over.",
};

async function generate(event) {
  event.preventDefault();
  if (state.running || at("instrument-view").hidden) return; // Enter in a setting submits the form, too
  if (!at("prompt").reportValidity() || !settingsAreValid()) return;
  try {
    const prompt = at("prompt").value;
    await run("completion", { ...readSettings(), prompt }, prompt);
  } catch (error) {
    setText("alert", `The JSON schema cannot be read: ${error.message}`);
  }
}

async function copyText() {
  try {
    await navigator.clipboard.writeText(state.generation?.text ?? "");
    say("Copied.");
  } catch {
    say("This browser lets no page copy here.");
  }
}

function showRule() {
  setText("rule-hint", `${RULES[at("acceptance").value]} Every rule keeps the target's own distribution.`);
  setText("enabled-word", at("enabled").checked ? "on" : "off");
}

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("instrument-view").hidden)
    at("form").requestSubmit();
  if (!leaves(event) || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("drawer")) {
    showDrawer(false);
    at("menu").focus();
  } else if (state.running) cancel();
  else hideTip();
}

const onToken = (action) => (event) => {
  const element = event.target.closest?.(".token");
  if (element) action(element);
};

showSamplers();
startSettings(showRule);
startViews();
startChat();
at("form").addEventListener("submit", generate);
at("key-form").addEventListener("submit", useKey);
at("open-settings").addEventListener("click", () => at("chat-settings").showModal());
at("close-settings").addEventListener("click", () => at("chat-settings").close());
for (const id of ["cancel", "stop"]) at(id).addEventListener("click", cancel);
at("copy").addEventListener("click", copyText);
at("show-rejected").addEventListener("change", (event) =>
  at("text").classList.toggle("rejections", event.target.checked),
);
at("text").addEventListener("mouseover", onToken(showTip));
at("text").addEventListener("focusin", onToken(showTip));
at("text").addEventListener("mouseleave", hideTip);
at("text").addEventListener("focusout", hideTip);
at("text").addEventListener("scroll", placeTip);
at("text").addEventListener("keydown", moveInText);
at("text").addEventListener(
  "click",
  onToken((element) => focusToken(Number(element.dataset.index))),
);
addEventListener("resize", placeTip);
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", poll);

showRule();
redraw();
poll();
