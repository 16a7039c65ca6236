// The numbers of the instrument: tiles, the chart of the rounds, and bars of where the time went.

import { NOTHING, at, count, fixed, make, ratio, seconds, time } from "./base.js";
import { phases } from "./generation.js";
import { state } from "./state.js";

const CHART_ROUNDS = 64;

export function showTiles() {
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

export function showChart() {
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

export function showPhases() {
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
