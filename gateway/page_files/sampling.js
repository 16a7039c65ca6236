// The settings of a generation: the common ones of the form, and every sampler.

import { at, make } from "./base.js";

// Name in the request, label, least, most, what it is when left empty.
const GROUPS = {
  "What may be drawn": [
    ["top_k", "Top-k", 0, 1e6, "40"],
    ["top_p", "Top-p", 0, 1, "0.95"],
    ["min_p", "Min-p", 0, 1, "0.05"],
    ["typical_p", "Typical-p", 0, 1, "1: off"],
    ["top_n_sigma", "Top-n-sigma", -1, 1e6, "-1: off"],
    ["tfs_z", "Tail-free", 0, 1, "1: off"],
    ["xtc_probability", "XTC chance", 0, 1, "0: off"],
    ["xtc_threshold", "XTC threshold", 0, 1, "0.1"],
    ["min_keep", "Keep at least", 0, 1e6, "0"],
  ],
  "Repetition": [
    ["repeat_penalty", "Repeat penalty", 0.001, 1000, "1: off"],
    ["presence_penalty", "Presence", -1000, 1000, "0: off"],
    ["frequency_penalty", "Frequency", -1000, 1000, "0: off"],
    ["repeat_last_n", "Last tokens", -1, 1e6, "64"],
    ["dry_multiplier", "DRY multiplier", 0, 1000, "0: off"],
    ["dry_base", "DRY base", 0, 1000, "1.75"],
    ["dry_allowed_length", "DRY length", 0, 1e6, "2"],
    ["dry_penalty_last_n", "DRY last tokens", -1, 1e6, "-1: all"],
  ],
  "Temperature and surprise": [
    ["dynatemp_range", "Dynamic range", 0, 1000, "0: off"],
    ["dynatemp_exponent", "Exponent", 0, 100, "1"],
    ["mirostat", "Mirostat", 0, 2, "0: off"],
    ["mirostat_tau", "Tau", 0, 100, "5"],
    ["mirostat_eta", "Eta", 0, 1, "0.1"],
  ],
};
const WHOLE = new Set(
  "top_k min_keep repeat_last_n dry_allowed_length dry_penalty_last_n mirostat".split(" "),
);
// Name in the request, label, what an example looks like, how the text is read.
const lines = (text) => text.split("\n").filter(Boolean);
const TEXTS = [
  ["stop", "Stop sequences, one a line", "", lines],
  ["dry_sequence_breakers", "DRY sequence breakers, one a line", "", lines],
  ["samplers", "Order of the samplers", "penalties;dry;top_k;temperature", (text) => text.split(";")],
  ["grammar", "Grammar (GBNF)", 'root ::= "yes" | "no"', (text) => text],
  ["json_schema", "JSON schema", '{"type": "object"}', (text) => JSON.parse(text)],
];

const field = (name) => at(`sampler-${name}`);

function numberField([name, label, min, max, placeholder]) {
  const step = WHOLE.has(name) ? "1" : "any";
  const attributes = { id: `sampler-${name}`, type: "number", min, max, step, placeholder };
  return make("label", {}, label, make("input", { ...attributes, form: "form" }));
}

function textField([name, label, placeholder]) {
  const attributes = { id: `sampler-${name}`, rows: 2, spellcheck: "false", placeholder, form: "form" };
  return make("label", {}, label, make("textarea", attributes));
}

/** Build the fields of every sampler. */
export function showSamplers() {
  const groups = Object.entries(GROUPS).map(([title, fields]) =>
    make(
      "fieldset",
      {},
      make("legend", {}, title),
      make("div", { classes: "options" }, ...fields.map(numberField)),
    ),
  );
  const flag = (name, label) =>
    make("label", { classes: "inline" }, make("input", { id: `sampler-${name}`, type: "checkbox" }), label);
  at("samplers").append(
    ...groups,
    make(
      "fieldset",
      { classes: "texts" },
      make("legend", {}, "The text"),
      ...TEXTS.map(textField),
      flag("ignore_eos", "Do not end before the token limit"),
      flag("spare_newlines", "Spare newlines the penalties"),
    ),
  );
}

/** Return the settings as the fields of a request; raises SyntaxError for a schema that is no JSON. */
export function readSettings() {
  const number = (id) => (at(id).value === "" ? undefined : at(id).valueAsNumber);
  const settings = {
    stream: true,
    report: true,
    n_probs: 1,
    n_predict: number("n-predict"),
    temperature: number("temperature"),
    seed: number("seed"),
    speculative: {
      enabled: at("enabled").checked,
      acceptance: at("acceptance").value || undefined,
      n_max: number("n-max"),
    },
  };
  for (const [name] of Object.values(GROUPS).flat()) settings[name] = number(`sampler-${name}`);
  for (const [name, , , read] of TEXTS) if (field(name).value.trim()) settings[name] = read(field(name).value);
  if (field("ignore_eos").checked) settings.ignore_eos = true;
  if (field("spare_newlines").checked) settings.penalize_nl = false;
  return settings;
}

/** Say whether every setting is in its range; the browser points at one that is not. */
export function settingsAreValid() {
  const wrong = document.querySelector(":is(#settings, #chat-only) :is(input, select, textarea):invalid");
  if (!wrong) return true;
  const fold = wrong.closest("details");
  if (fold) fold.open = true;
  const dialog = wrong.closest("dialog");
  if (dialog && !dialog.open) dialog.showModal();
  return wrong.reportValidity();
}
