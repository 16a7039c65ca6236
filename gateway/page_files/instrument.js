// The instrument: the tokens of a generation with their origins, what is known about each, and when it is drawn.

import { NOTHING, at, fixed, make, setText, time, visible, word } from "./base.js";
import { DRAFT_ENDS, ORIGINS, whyNothingWasDrafted } from "./generation.js";
import { showChart, showPhases, showTiles, showTrips } from "./numbers.js";
import { describeLine, describeSource, showSources, tokenMark } from "./sources.js";
import { state } from "./state.js";

let drawing = false; // whether the next frame draws everything already
let drawn = { generation: null, count: 0, marked: false }; // what of a generation's tokens stands in the text
let pointed = null; // the token that the tip describes

// --- The text ---

function tokenElement(token, index) {
  const text = token.text;
  const origin = word(token.origin, "TOKEN_ORIGIN_");
  const classes = ["token"];
  const mark = token.source ? tokenMark(token, state.generation.tokens[index - 1]) : {};
  if (origin in ORIGINS) classes.push(mark.classes ?? origin);
  if (text.startsWith("\n")) classes.push("break");
  if (!text) classes.push("blank");
  const element = make("span", { classes: classes.join(" "), tabindex: "-1", "data-index": index }, text);
  if (mark.letter) element.dataset.mark = mark.letter;
  const rejected = state.generation.rounds.get(token.round)?.rejected;
  if (origin === "corrected" && rejected) element.dataset.rejected = visible(rejected);
  return element;
}

/** Draw the tokens that came since the last time, and mark the end of what is over. */
function showTokens() {
  const { generation } = state;
  const box = at("text");
  if (generation !== drawn.generation) {
    hideTip();
    drawn = { generation, count: 0, marked: false };
    box.replaceChildren(make("span", { classes: "prompt" }, generation.shown));
  }
  if (drawn.count < generation.tokens.length) {
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(...generation.tokens.slice(drawn.count).map((token, i) => tokenElement(token, drawn.count + i)));
    if (!drawn.count) tokenAt(0).setAttribute("tabindex", "0");
    drawn.count = generation.tokens.length;
    if (follows) box.scrollTop = box.scrollHeight;
  }
  if (generation.end && !drawn.marked) markTail();
}

const tokenAt = (index) => at("text").querySelector(`[data-index="${index}"]`);

/** Mark what was generated and is not part of the text: a stop sequence and the end token. */
function markTail() {
  const stop = state.generation.end.stop_type;
  const last = state.generation.tokens.length - 1;
  let length = 0;
  drawn.marked = true;
  state.generation.tokens.forEach((token, i) => {
    length += token.text.length;
    const isCut = stop === "word" && !state.generation.isParsed && token.text;
    if (isCut && length > state.generation.text.length) tokenAt(i).classList.add("cut");
  });
  if (stop === "eos" && state.generation.tokens[last]?.text === "") tokenAt(last).classList.add("end");
}

function showLegend() {
  const counts = Object.fromEntries(Object.keys(ORIGINS).map((origin) => [origin, 0]));
  for (const token of state.generation?.tokens ?? []) {
    const origin = word(token.origin, "TOKEN_ORIGIN_");
    if (origin in counts) counts[origin] += 1;
  }
  at("legend").replaceChildren(
    ...Object.entries(ORIGINS).map(([origin, meaning]) =>
      make(
        "li",
        { title: meaning },
        make("span", { classes: "number" }, String(counts[origin])),
        " ",
        make("span", { classes: `mark ${origin}` }, origin),
      ),
    ),
  );
}

/** Say in one sentence why no token was drafted, where none was. */
function showWhy() {
  const why = state.generation ? whyNothingWasDrafted(state.generation, state.status) : "";
  setText("why", why);
  at("why").hidden = !why;
}

// --- What is known about a token ---

function roundDraft(round) {
  const kind = (i) =>
    i < round.accepted ? "kept" : i === round.accepted && round.rejected != null ? "rejected" : "unseen";
  const says = { kept: "accepted", rejected: "rejected", unseen: "not looked at" };
  return round.draft.map((text, i) =>
    make("code", { classes: kind(i), title: says[kind(i)] }, visible(text)),
  );
}

function tipRows(token) {
  const origin = word(token.origin, "TOKEN_ORIGIN_");
  const round = state.generation.rounds.get(token.round);
  const rows = [
    ["origin", [origin ? `${origin}: ${ORIGINS[origin] ?? ""}` : "not reported"]],
    ...(token.source ? [["source", [describeSource(token.source)]]] : []),
    ...(token.line ? [["line", [describeLine(token.line)]]] : []),
    ["position", [String(token.position ?? NOTHING)]],
  ];
  const seconds = Number.isFinite(round?.seconds) ? `, ${time(round.seconds)}` : "";
  rows.push(["round", [`${token.round ?? NOTHING}${seconds}`]]);
  rows.push([
    "probability",
    [Number.isFinite(token.logprob) ? fixed(Math.exp(token.logprob), 4) : "not reported"],
  ]);
  if (origin === "corrected" && round?.rejected != null) {
    rows.push([
      "rejected",
      [make("code", { classes: "rejected" }, visible(round.rejected)), " from the draft"],
    ]);
  }
  if (round?.draft.length) rows.push(["draft", roundDraft(round)]);
  const end = word(round?.draft_end, "DRAFT_END_");
  if (end) rows.push(["draft end", [DRAFT_ENDS[end] ?? end]]);
  return rows;
}

export function showTip(element) {
  const token = state.generation.tokens[element.dataset.index];
  const id = token.id == null ? "" : ` id ${token.id}`;
  const list = make("dl");
  for (const [name, values] of tipRows(token)) {
    list.append(make("dt", {}, name), make("dd", { classes: name === "draft" ? "draft" : "" }, ...values));
  }
  const tip = at("tip");
  tip.replaceChildren(make("code", {}, visible(token.text)), make("small", {}, id), list);
  tip.hidden = false;
  pointed = element;
  placeTip();
  markMates(token.round);
  element.setAttribute("aria-describedby", "tip");
}

/** Put the tip beside its token, or away when that is scrolled out of sight. */
export function placeTip() {
  if (!pointed) return;
  const [tip, box] = [at("tip"), at("text").getBoundingClientRect()];
  const place = pointed.getClientRects()[0] ?? pointed.getBoundingClientRect();
  if (place.bottom < box.top || place.top > box.bottom) return hideTip();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8));
  const below = place.bottom + 8;
  const top = below + height > innerHeight && place.top - height - 8 > 0 ? place.top - height - 8 : below;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${top + scrollY}px`;
}

/** Bring out the tokens of one round. */
function markMates(round) {
  for (const element of document.querySelectorAll(".mate")) element.classList.remove("mate");
  if (round == null) return;
  state.generation.tokens.forEach((token, i) => {
    if (token.round === round) tokenAt(i).classList.add("mate");
  });
}

export function hideTip() {
  at("tip").hidden = true;
  pointed = null;
  markMates(null);
}

/** Let one token take part in the tab order, and the arrow keys move between them. */
export function focusToken(index) {
  const element = tokenAt(index);
  if (!element) return;
  at("text").querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
  element.setAttribute("tabindex", "0");
  element.focus();
}

export function moveInText(event) {
  const index = Number(event.target.dataset?.index);
  if (!Number.isInteger(index)) return;
  const last = state.generation.tokens.length - 1;
  const next = {
    ArrowRight: index + 1,
    ArrowDown: index + 1,
    ArrowLeft: index - 1,
    ArrowUp: index - 1,
    Home: 0,
    End: last,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  focusToken(Math.max(0, Math.min(last, next)));
}

// --- When it is drawn ---

/** Draw everything, where the instrument can be seen. */
export function draw() {
  drawing = false;
  if (at("instrument-view").hidden) return;
  if (state.generation) showTokens();
  for (const show of [showLegend, showWhy, showTiles, showChart, showSources, showPhases, showTrips]) show();
}

/** Draw everything before the next frame, once. */
export function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}
