// A generation: what has come so far, and what that says. Nothing here touches the page.

import { Refusal, ratio, seconds, time, word } from "./base.js";

export const ORIGINS = {
  drafted: "drafted, and accepted by the target",
  corrected: "the target's own, in place of a rejected draft token",
  bonus: "the target's own, after a fully accepted draft",
  plain: "the target's own, in a round without a draft",
};

export const DRAFT_ENDS = {
  length: "as long as asked for",
  end_of_text: "it ends the text",
  token_limit: "the token limit leaves no more",
  context: "a context leaves no more",
  short: "no more was there in time",
  late: "the draft is late",
  paused: "paused after a failure",
  absent: "no draft service",
  off: "switched off",
  prompt: "the prompt's round",
  doubt: "the draft was not sure enough",
  enough: "more would not have paid",
};

export class Generation {
  /** `shown` stands before the tokens. */
  constructor(request, shown, aloneRate) {
    this.request = request;
    this.shown = shown;
    this.aloneRate = aloneRate; // tokens per second of the target alone in llama.cpp; 0 when unknown
    this.abort = new AbortController();
    this.text = "";
    this.isParsed = false; // whether thoughts and calls are taken out of the text, so that it is not its tokens'
    this.tokens = [];
    this.reported = false;
    this.rounds = new Map();
    this.first = this.last = 0; // when the first and the latest tokens came, in milliseconds
    this.end = null;
  }

  /** Take in an event of the stream, of /completion or of a chat. */
  take(event) {
    if (event.error) throw new Refusal(event.error.code, event.error.message || "The generation failed.");
    const choice = event.choices?.[0];
    const content = event.content ?? choice?.delta?.content ?? choice?.delta?.reasoning_content ?? "";
    this.isParsed ||= Boolean(choice);
    this.text += content;
    if (event.round) this.rounds.set(event.round.round, event.round);
    if (event.stop || choice?.finish_reason) this.end = endOf(event, choice);
    const reported = (event.tokens ?? []).filter((token) => token?.text !== undefined);
    const tokens = reported.length || !content || this.reported ? reported : [{ text: content }];
    this.reported ||= reported.length > 0; // a server without reports sends text alone
    if (tokens.length) {
      this.last = performance.now();
      if (!this.first) [this.first, this.firstCount] = [this.last, tokens.length];
      this.tokens.push(...tokens);
    }
  }

  /** What each source of draft tokens did; what nobody tells is NaN. */
  get sources() {
    const told = this.end?.statistics?.sources ?? [];
    return told.length ? told.map(finalSource) : this.liveSources();
  }

  liveSources() {
    const known = new Map();
    for (const round of this.rounds.values())
      for (const [i, name] of (round.sources ?? []).entries()) {
        const source = known.get(name) ?? { name, drafted: 0, accepted: 0, decided: NaN, seconds: NaN };
        known.set(name, source);
        source.drafted += 1;
        source.accepted += i < round.accepted;
      }
    return [...known.values()];
  }

  get numbers() {
    return this.end?.statistics ? finalNumbers(this.end.statistics) : this.liveNumbers();
  }

  liveNumbers() {
    const rounds = [...this.rounds.values()];
    const drafted = rounds.reduce((sum, round) => sum + round.draft.length, 0);
    const accepted = rounds.reduce((sum, round) => sum + round.accepted, 0);
    const elapsed = (this.last - this.first) / 1000;
    const rate = ratio(this.tokens.length - this.firstCount, elapsed);
    return {
      drafted,
      accepted,
      rate,
      elapsed,
      rounds: rounds.length,
      generated: this.tokens.length,
      speedup: drafted ? ratio(rate, this.aloneRate) : NaN,
      basis: this.aloneRate ? overAlone(this.aloneRate) : "known at the end",
    };
  }
}

/** Return why a text ended, in /completion's words, with its seed and what it took. */
function endOf(event, choice) {
  const stop_type = event.stop_type ?? (choice.finish_reason === "length" ? "limit" : "eos");
  return { stop_type, seed: event.seed ?? event.generation_settings?.seed, statistics: event.statistics };
}

function overAlone(rate) {
  return `over ${rate.toFixed(1)} of the target alone`;
}

function finalSource(source) {
  return {
    name: source.name,
    drafted: source.drafted_token_count ?? 0,
    accepted: source.accepted_token_count ?? 0,
    decided: source.decided_token_count ?? NaN,
    agreed: source.agreed_token_count ?? NaN,
    seconds: source.seconds ?? NaN,
  };
}

function finalNumbers(statistics) {
  const generated = statistics.generated_token_count ?? 0;
  const drafted = statistics.drafted_token_count ?? 0;
  const elapsed = statistics.generation_seconds ?? 0;
  const alone = statistics.controller?.target_alone_token_rate ?? 0;
  const rate = ratio(generated - 1, elapsed);
  return {
    drafted,
    generated,
    elapsed,
    accepted: statistics.accepted_token_count ?? 0,
    rounds: statistics.round_count ?? 0,
    rate,
    speedup: drafted && alone ? ratio(rate, alone) : NaN,
    basis: drafted && alone ? overAlone(alone) : "",
  };
}

const WHY_NOT = {
  absent: "there is no draft service",
  off: "drafts are switched off",
  paused: "the draft failed and is asked again later",
  late: "the draft was too late every time",
  short: "no draft was there when the target was free",
  enough: "by what was measured so far, waiting for a draft would not have paid",
  doubt: "the draft was not sure enough of its first token",
  length: "the wanted draft length is 0",
  context: "the draft's context is full",
  end_of_text: "the text ended at once",
  token_limit: "the token limit leaves no room for a draft",
};

/** Return in one sentence why a generation drafted nothing; "" where it did or nobody knows yet. */
export function whyNothingWasDrafted(generation, status) {
  const { drafted, rounds } = generation.numbers;
  if (drafted || !(generation.end || rounds > 3)) return "";
  const because = (reason) => `Nothing was drafted: ${reason}.`;
  if (generation.request.speculative?.enabled === false) return because("the draft is switched off");
  const ends = new Map();
  for (const round of generation.rounds.values()) {
    const end = word(round.draft_end, "DRAFT_END_");
    if (end !== "prompt") ends.set(end, (ends.get(end) ?? 0) + 1);
  }
  const [most] = [...ends].sort((a, b) => b[1] - a[1])[0] ?? [];
  if (most === "absent" && status?.reason) return because(status.reason);
  if (most) return because(WHY_NOT[most] ?? most);
  return generation.reported ? because("the text ended with the round of the prompt") : "";
}

/** Return where the time went, in parts that add up to the whole, as `outrider generate` does. */
export function phases(statistics) {
  const of = (name) => statistics[`${name}_seconds`] ?? 0;
  const network = of("draft_network") + of("verify_network");
  const draft = of("draft_wait") - of("draft_network");
  const verify = of("verify_wait") - of("verify_network");
  const total = of("first_token") + of("generation");
  const other = Math.max(0, total - draft - verify - network);
  return {
    total,
    parts: [
      ["draft wait", draft, "draft"],
      ["verify", verify, "verify"],
      ["network", network, "network"],
      ["other", other, "other"],
    ],
  };
}
