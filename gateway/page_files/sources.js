// The sources of draft tokens: who there is, who proposed a token, and what each did.

import { NOTHING, at, count, fixed, make, ratio } from "./base.js";
import { state } from "./state.js";

// A letter stands where a source begins, so that no colour is needed to tell it.
const SOURCES = {
  model: ["M", "the draft model"],
  mtp: ["H", "the target's MTP head"],
  eagle3: ["E", "an EAGLE-3 head"],
  dflash: ["D", "a DFlash head"],
  dspark: ["K", "a DSpark head"],
  prediction: ["P", "the text that the request expects"],
  forced: ["F", "what the grammar leaves no choice about"],
  suffix: ["S", "what followed the same words before"],
  copy: ["C", "what was copied, behind an edit"],
  ngram: ["N", "n-grams of texts"],
  past: ["T", "past texts"],
};

const WITH_A_MODEL = ["model", "mtp", "eagle3", "dflash", "dspark"];
const BRANCH_COLOURS = 4;
const BRANCH = "runner-up line: what the draft wrote in case its own line was wrong";

/** Return the class of a runner-up line: adjacent ones differ in colour. */
const branchOf = (line) => (line > 0 ? ` branch-${1 + ((line - 1) % BRANCH_COLOURS)}` : "");

const classesOf = (name) => (name in SOURCES ? `drafted from-${name}` : "drafted");
const letterOf = (name) => SOURCES[name]?.[0] ?? "?";

/** Return what marks a token behind another; a model or head has a letter only behind others, and R where a runner-up line begins. */
export function tokenMark(token, before) {
  const { source, line = 0 } = token;
  const classes = classesOf(source) + branchOf(line);
  if (line > 0) return { classes, letter: line !== before?.line ? "R" : "" };
  const begins = source !== before?.source && (!WITH_A_MODEL.includes(source) || Boolean(before?.source));
  return { classes, letter: begins ? letterOf(source) : "" };
}

export const describeLine = (line) => `${line}, a ${BRANCH}`;

export const describeSource = (name) => `${name}${name in SOURCES ? `: ${SOURCES[name][1]}` : ""}`;

const chip = (name) =>
  make(
    "span",
    { classes: `mark ${classesOf(name)}`, title: SOURCES[name]?.[1] ?? "", "data-mark": letterOf(name) },
    name,
  );

/** Say what the colours of branches mean: how many tokens are of runner-up lines, one mark a colour. */
function branchLegend(tokens) {
  const colours = [...new Set(tokens.map(({ line }) => branchOf(line)))].sort();
  const mark = (classes) => make("span", { classes: `mark drafted${classes}`, "data-mark": "R", title: BRANCH });
  return make(
    "li",
    { title: BRANCH },
    make("span", { classes: "number" }, String(tokens.length)),
    " of runner-up lines ",
    ...colours.map(mark),
  );
}

/** Count the text's drafted tokens by source, where more than the model drafted. */
function showSourceLegend() {
  const counts = new Map();
  for (const { source } of state.generation?.tokens ?? [])
    if (source) counts.set(source, (counts.get(source) ?? 0) + 1);
  const branched = (state.generation?.tokens ?? []).filter(({ line }) => line > 0);
  const isPlain = !branched.length && [...counts.keys()].every((name) => name === "model");
  at("source-legend").hidden = isPlain;
  at("source-legend").replaceChildren(
    ...[...(isPlain ? [] : counts)].map(([name, number]) =>
      make("li", {}, make("span", { classes: "number" }, String(number)), " ", chip(name)),
    ),
    ...(branched.length ? [branchLegend(branched)] : []),
  );
}

function row(source) {
  const { name, drafted, accepted, decided, agreed, seconds } = source;
  const numbers = [
    drafted,
    accepted,
    Number.isFinite(decided) ? `${agreed} of ${decided}` : NOTHING,
    fixed(1e6 * ratio(seconds, drafted), 0),
  ];
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, chip(name)),
    ...numbers.map((number) => make("td", { classes: "number" }, String(number))),
  );
}

/** Show what each source did: while the text comes, as far as the rounds tell. */
export function showSources() {
  showSourceLegend();
  const sources = state.generation?.sources ?? [];
  at("sources").hidden = !sources.length;
  at("no-sources").hidden = sources.length > 0;
  at("no-sources").textContent = state.generation?.numbers.drafted ? "not told" : "nothing drafted yet";
  at("source-rows").replaceChildren(...sources.map(row));
  const steps = state.generation?.end?.statistics?.draft_time?.step_count;
  at("steps").textContent = steps == null ? "" : count(steps, "draft step");
}
