// The instrument: the tokens of a generation with their origins, its numbers, its rounds, its time.

import { NOTHING, at, count, fixed, make, ratio, seconds, setText, time, visible, word } from "./base.js";
import { DRAFT_ENDS, ORIGINS, phases, whyNothingWasDrafted } from "./generation.js";
import { describeLine, describeSource, showSources, tokenMark } from "./sources.js";
import { state } from "./state.js";

const CHART_ROUNDS = 64;

let drawing = false; // whether the next frame draws the numbers already
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

export function appendTokens(tokens) {
  const box = at("text");
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const start = state.generation.tokens.length - tokens.length;
  box.append(...tokens.map((token, i) => tokenElement(token, start + i)));
  if (start === 0) tokenAt(0)?.setAttribute("tabindex", "0");
  if (follows) box.scrollTop = box.scrollHeight;
}

const tokenAt = (index) => at("text").querySelector(`[data-index="${index}"]`);

/** Mark what was generated and is not part of the text: a stop sequence and the end token. */
export function markTail() {
  const stop = state.generation.end?.stop_type;
  const last = state.generation.tokens.length - 1;
  let length = 0;
  state.generation.tokens.forEach((token, i) => {
    length += token.text.length;
    if (stop === "word" && token.text && length > state.generation.text.length) tokenAt(i).classList.add("cut");
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

// --- Numbers, chart and bars ---

function showTiles() {
  const n = state.generation?.numbers ?? { rate: NaN, speedup: NaN, basis: "" };
  const tiles = [
    [
      "acceptance",
      "Acceptance",
      fixed(100 * ratio(n.accepted, n.drafted), 1),
      " %",
      n.drafted ? `${n.accepted} of ${n.drafted} drafted` : "nothing drafted",
    ],
    [
      "per-round",
      "Tokens per round",
      fixed(ratio(n.generated, n.rounds), 2),
      "",
      n.rounds ? `${n.generated} in ${count(n.rounds, "round")}` : "",
    ],
    [
      "rate",
      "Tokens per second",
      fixed(n.rate, 1),
      "",
      Number.isFinite(n.rate) ? `over ${time(n.elapsed)}` : "",
    ],
    ["speedup", "Speed-up", fixed(n.speedup, 2), "×", state.generation ? n.basis : ""],
  ];
  at("tiles").replaceChildren(
    ...tiles.map(([id, name, value, unit, note]) =>
      make(
        "div",
        {},
        make("dt", {}, name),
        make("dd", { classes: "value", id: `${id}-value` }, value === NOTHING ? value : value + unit),
        make("dd", { classes: "note" }, note),
      ),
    ),
  );
}

function showChart() {
  const all = [...(state.generation?.rounds.values() ?? [])];
  const shown = all.slice(-CHART_ROUNDS);
  const top = Math.max(4, ...shown.map((round) => round.draft.length));
  const [step, height] = [320 / Math.max(24, shown.length), 70];
  const bars = shown.flatMap((round, i) =>
    chartBars(round, i * step + step * 0.1, step * 0.8, height, height / top),
  );
  at("chart").replaceChildren(
    make("line", { x1: 0, x2: 320, y1: height, y2: height }),
    make("line", { x1: 0, x2: 320, y1: 0, y2: 0 }),
    ...bars,
  );
  const mean = ratio(
    all.reduce((sum, round) => sum + round.draft.length, 0),
    all.length,
  );
  at("chart-mean").textContent = all.length ? `mean ${mean.toFixed(1)}, axis 0 to ${top}` : "";
  const from = all.length - shown.length + 1;
  at("chart-range").textContent = all.length ? `rounds ${from} to ${all.length}` : "no rounds yet";
}

function chartBars(round, x, width, height, unit) {
  const [kept, lost] = [round.accepted, round.draft.length - round.accepted];
  if (!round.draft.length) return [make("rect", { classes: "none", x, width, y: height - 2, height: 2 })];
  const bars = [];
  if (lost)
    bars.push(
      make("rect", {
        classes: "lost",
        x,
        width,
        y: height - (kept + lost) * unit + 1,
        height: lost * unit - 1,
      }),
    );
  if (kept)
    bars.push(make("rect", { classes: "kept", x, width, y: height - kept * unit, height: kept * unit }));
  return bars;
}

function bar(name, value, largest, texts, tone) {
  const fill = make("span", { classes: `fill ${tone}-tone` });
  fill.style.width = `${Math.min(100, 100 * ratio(value, largest) || 0)}%`;
  const numbers = texts.map((text) => make("span", { classes: "number" }, text));
  return make(
    "li",
    {},
    make("span", {}, name),
    make("span", { classes: "track", "aria-hidden": "true" }, fill),
    ...numbers,
  );
}

function showPhases() {
  const statistics = state.generation?.end?.statistics;
  const { total, parts } = statistics ? phases(statistics) : phases({});
  const share = (part) => (total ? `${Math.round((100 * part) / total)} %` : NOTHING);
  const largest = Math.max(...parts.map(([, part]) => part));
  at("phases-total").textContent = statistics ? `${time(total)} with the prompt` : "known at the end";
  at("phases").replaceChildren(
    ...parts.map(([name, part, tone]) =>
      bar(name, part, largest, [statistics ? time(part) : NOTHING, share(part)], tone),
    ),
  );
  at("phases-stack").replaceChildren(
    ...(total ? parts : []).map(([, part, tone]) => {
      const piece = make("span", { classes: `${tone}-tone` });
      piece.style.flex = `${part} 0 0`;
      return piece;
    }),
  );
}

/** Show how long a small call to each peer takes, beside a whole round. */
export function showTrips() {
  const trips = (state.status?.peers ?? [])
    .filter((peer) => peer.round_trip_duration)
    .map((peer) => [peer.role, seconds(peer.round_trip_duration), "network"]);
  const timed = [...(state.generation?.rounds.values() ?? [])].filter(
    (round) => round.draft_end !== "prompt" && Number.isFinite(round.seconds),
  );
  if (timed.length)
    trips.push(["round", timed.reduce((sum, round) => sum + round.seconds, 0) / timed.length, "verify"]);
  const largest = Math.max(...trips.map(([, value]) => value));
  const rows = trips.map(([name, value, tone]) =>
    bar(name, value, largest, [fixed(1000 * value, 1), name === "round" ? "mean" : "ping"], tone),
  );
  at("trips").replaceChildren(
    ...(rows.length ? rows : [make("li", {}, make("small", {}, "not measured yet"))]),
  );
}

/** Draw the numbers before the next frame, once. */
export function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const show of [showLegend, showWhy, showTiles, showChart, showSources, showPhases, showTrips]) show();
  });
}
