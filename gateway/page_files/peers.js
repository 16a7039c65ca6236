// The peers: asks the gateway for its state again and again, and for a key where it wants one.

import { Refusal, at, call, count, fixed, make, seconds, setText, word } from "./base.js";
import { showTrips } from "./numbers.js";
import { state } from "./state.js";
import { givenKey, keepKey } from "./store.js";
import { showModel } from "./views.js";

const PEER_STATES = {
  ready: ["●", "good"],
  loading: ["◐", "busy"],
  connecting: ["○", "busy"],
  refused: ["✕", "bad"],
  lost: ["✕", "bad"],
};
const POLL_MILLISECONDS = 2000;
const WANTS_KEY = "The gateway wants an API key.";
const KEY = /^[\x20-\x7e]+$/; // what a gateway takes for one; fetch throws for a header with characters above U+00FF
const NO_KEY = "This cannot be an API key: one is printable ASCII, without accents and hidden characters.";

let keyWanted = false; // whether calls are refused until a key is given
let pollTimer = 0;

// A draft whose tokens are not the target's, and at which level it translates.
function levelOf(peer) {
  if (!peer.translation) return "";
  const level = word(peer.translation.level, "TRANSLATION_LEVEL_").replace(/s$/, "");
  return `translates, ${level} level`;
}

// What is not usual: a memory that is not cut freely.
function memoryOf(model) {
  const kind = word(model?.rollback_capability, "ROLLBACK_CAPABILITY_");
  return kind && kind !== "full" ? `memory ${kind}` : "";
}

function peerElement(peer) {
  const condition = word(peer.state, "PEER_STATE_");
  const [sign, tone] = PEER_STATES[condition] ?? ["?", ""];
  const trip = peer.round_trip_duration ? `${fixed(1000 * seconds(peer.round_trip_duration), 1)} ms` : "";
  const does = peer.role === "target" ? "writes" : "drafts for";
  const work = peer.generation_count ? `${does} ${count(peer.generation_count, "generation")}` : "";
  const trust = peer.trusted ? "" : ", not for rejection";
  const joined = peer.joined ? `dialled in${trust}` : "";
  const memory = peer.role === "target" ? memoryOf(peer.model) : "";
  const known = [peer.address, joined, levelOf(peer), memory, work, peer.detail];
  const detail = known.filter(Boolean).join(" · ");
  return make(
    "li",
    {},
    make("span", { classes: `sign ${tone}`, "aria-hidden": "true" }, sign),
    make(
      "span",
      { classes: "what" },
      `${peer.role} ${condition || "unknown"}`,
      peer.model?.model_name ? make("span", { classes: "faint" }, ` ${peer.model.model_name}`) : "",
    ),
    make("span", { classes: "number" }, trip),
    make("small", { classes: "detail" }, detail),
  );
}

function refusedElement(draft) {
  const attempts = count(draft.attempt_count, "attempt");
  const ago = `${attempts}, ${fixed(seconds(draft.since_duration), 0)} s ago`;
  return make(
    "li",
    {},
    make("span", { classes: "sign bad", "aria-hidden": "true" }, "✕"),
    make(
      "span",
      { classes: "what" },
      "draft sent away",
      draft.model_name ? make("span", { classes: "faint" }, ` ${draft.model_name}`) : "",
    ),
    make("small", { classes: "detail" }, [draft.address, draft.reason, ago].join(" · ")),
  );
}

function showStatus() {
  const peers = state.status.peers ?? [];
  const refused = state.status.refused_drafts ?? [];
  at("peers").replaceChildren(...peers.map(peerElement), ...refused.map(refusedElement));
  at("peers-note").textContent = `${count(state.status.active_generation_count ?? 0, "generation")} in flight`;
  const names = (role) => peers.filter((peer) => peer.role === role).map((peer) => peer.model?.model_name);
  const [drafts, targets] = [names("draft"), names("target")];
  const pool = targets.length > 1 ? count(targets.length, "target") : targets[0];
  const pair = [drafts.length > 1 ? count(drafts.length, "draft") : drafts[0], pool]
    .filter(Boolean)
    .join(" → ");
  at("pair").textContent = [pair, speculation(state.status)].filter(Boolean).join(", ");
  showModel(targets[0] ?? "");
  showTrips();
}

function speculation({ speculating, text_sources: sources = [], reason }) {
  if (speculating) return "speculating";
  if (sources.length) return `drafts from the text itself (${sources.join(", ")}): ${reason}`;
  return `not speculating${reason ? `: ${reason}` : ""}`;
}

function showUnreachable(message) {
  state.status = null;
  at("peers").replaceChildren(
    make(
      "li",
      {},
      make("span", { classes: "sign bad", "aria-hidden": "true" }, "✕"),
      make("span", { classes: "what" }, message),
    ),
  );
  at("peers-note").textContent = "";
  at("pair").textContent = message;
  showTrips();
}

export async function poll() {
  clearTimeout(pollTimer);
  if (document.hidden || keyWanted) return;
  try {
    const response = await call("status", { signal: AbortSignal.timeout(5000) });
    state.status = await response.json();
    showStatus();
  } catch (error) {
    if (error.status === 401) askForKey(error.message);
    const message = error instanceof Refusal ? error.message : "The gateway cannot be reached.";
    showUnreachable(keyWanted ? WANTS_KEY : message);
  }
  clearTimeout(pollTimer);
  pollTimer = setTimeout(poll, POLL_MILLISECONDS);
}

// --- The key ---

export function askForKey(message) {
  setText("alert", givenKey() ? message : WANTS_KEY);
  keyWanted = true;
  keepKey("");
  at("key-form").hidden = false;
  if (!["prompt", "question"].includes(document.activeElement?.id)) at("key").focus();
}

export function useKey(event) {
  event.preventDefault();
  const given = at("key").value.trim();
  at("key").value = "";
  if (!KEY.test(given)) {
    setText("alert", NO_KEY);
    return at("key").focus();
  }
  keepKey(given);
  keyWanted = false;
  at("key-form").hidden = true;
  setText("alert", "");
  at(at("chat-view").hidden ? "prompt" : "question").focus();
  poll();
}
