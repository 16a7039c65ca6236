"""The mistakes: what a maintainer could break with one line, and the tests that must notice.

They are of every part of the product. For each the fastest tests that notice are named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong change: `old`, which is exactly once in `file`, becomes `new`."""

    what: str  # is wrong then
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # files or tests; one of them fails at least


ACCEPTANCE = "tests/unit/test_acceptance.py"
DISTRIBUTION = "tests/unit/test_distribution.py"
GENERATION = "tests/unit/test_generation.py"
CONTINUING = "tests/unit/test_continuing.py"
NOISE = "tests/unit/test_noise.py"
SPECULATE = "tests/unit/test_speculate.py"
RECEIVED = "tests/unit/test_received_line.py"
CACHE = "tests/unit/test_cache.py"
RUNNER_UPS = "tests/unit/test_runner_up_lines.py"
OWN_ENGINE = "tests/engine/test_own_draft.py"
OWN_HEAD = "tests/engine/test_head_draft.py"
OWN_LOSSLESS = "tests/exact/test_own_drafts_are_lossless.py"
HEAD_FILES = "tests/engine/test_head_files.py"
HEAD_ORDERS = "tests/unit/test_head_orders.py"
OWN_POLICY = "tests/unit/test_own_draft_policy.py"
READING = "tests/unit/test_reading.py"
SCHEDULER = "tests/unit/test_scheduler.py"
RATES = "tests/unit/test_rates.py"
LOG = "tests/unit/test_log.py"

MISTAKES = (
    # --- memories that are not simply cut ---
    Mistake(
        "what is emptied gives its cell away, and states with snapshots are moved",
        "outrider/engine/llama_memory.py",
        "            self.restore(sequence, self._placeholder)",
        "            pass",
        ("tests/engine/test_rollback.py",),
    ),
    Mistake(
        "no checkpoint is made where a session goes idle",
        "outrider/engine/runner.py",
        "            self._model.checkpoint(session.sequence)",
        "            pass",
        ("tests/services/test_rollback_kinds.py",),
    ),
    Mistake(
        "the checkpoint that a sequence needs next is dropped for its size",
        "outrider/engine/rollback.py",
        "        if len(most) > 1:\n            del most[0]\n",
        "        if most:\n            del most[0]\n",
        ("tests/unit/test_rollback.py",),
    ),
    Mistake(
        "rows that are decoded again are taken for those of others",
        "outrider/core/control.py",
        "outcome.drafted + 1 + outcome.beside + self._taken_back.count",
        "outcome.drafted + 1 + outcome.beside",
        ("tests/unit/test_rejection_prices.py",),
    ),
    Mistake(
        "a draft that loses time whatever it says of itself is never left alone",
        "outrider/core/rates.py",
        "if its.lost >= self._MOST_LOST:",
        "if False:",
        (RATES,),
    ),
    Mistake(
        "one slow round counts against a draft however long it took",
        "outrider/core/rates.py",
        "lost = min(seconds / plain_seconds, self._MOST_OF_A_ROUND * committed) - committed",
        "lost = seconds / plain_seconds - committed",
        (f"{RATES}::test_one_slow_round_says_more_of_the_machine_than_of_the_draft",),
    ),
    Mistake(
        "rounds are sized as if rejections cost nothing",
        "outrider/core/control.py",
        "decode = self.costs.checked_seconds(len(known) + 1, self._text_length, mean)",
        "decode = self.decode_seconds(len(known) + 1)",
        ("tests/unit/test_rejection_prices.py",),
    ),
    # --- the rule ---
    Mistake(
        "the coin compares with q/p instead of p/q",
        "outrider/core/acceptance.py",
        "* q.probability(token.token_id) >= p.probability(token.token_id)",
        "* p.probability(token.token_id) >= q.probability(token.token_id)",
        (f"{ACCEPTANCE}::test_the_coin_decides_at_p_over_q",),
    ),
    Mistake(
        "after a rejection the next token comes from p and not from the residual",
        "outrider/core/acceptance.py",
        "residual(p, q).draw(",
        "p.draw(",
        (f"{ACCEPTANCE}::test_after_a_rejection_only_what_p_has_more_than_q_can_follow",),
    ),
    Mistake(
        "behind a block the next token comes from the residual of a token",
        "outrider/core/acceptance.py",
        "draft[count].distribution, shares[count])",
        "draft[count].distribution)",
        (f"{ACCEPTANCE}::test_what_follows_a_prefix_is_what_its_share_of_p_has_more_than_q",),
    ),
    Mistake(
        "the share of a prefix grows beyond 1 on the way",
        "outrider/core/acceptance.py",
        "if share < q else float(share > 0.0)",
        "if q else 0.0",
        (f"{ACCEPTANCE}::test_a_share_multiplies_p_over_q_and_never_exceeds_1_on_the_way",),
    ),
    Mistake(
        "the coin of a prefix leaves out what its share lacks",
        "outrider/core/acceptance.py",
        "* (left + (1.0 - shares[i])) <= left",
        "* (left + 1.0) <= left",
        (f"{ACCEPTANCE}::test_the_coin_of_a_prefix_turns_at_what_is_left_for_it",),
    ),
    Mistake(
        "the residual takes weights for probabilities",
        "outrider/distribution.py",
        "    left = p.weights / p.total\n",
        "    left = p.weights.copy()\n",
        (f"{DISTRIBUTION}::test_a_residual_does_not_depend_on_the_scale_of_the_weights",),
    ),
    Mistake(
        "a row that is sent rounds unlikely tokens to weight 0",
        "outrider/distribution.py",
        "np.maximum(scaled, 1.0)",
        "scaled",
        (f"{DISTRIBUTION}::test_a_weight_too_small_to_write_is_written_as_1",),
    ),
    Mistake(
        "matching accepts the first token that differs, too",
        "outrider/core/acceptance.py",
        "return Verdict(i, sample)",
        "return Verdict(i + 1, sample)",
        (f"{ACCEPTANCE}::test_the_first_sample_that_differs_follows_the_accepted_tokens",),
    ),
    # --- rounds and rollback ---
    Mistake(
        "the target is taken to hold the token that it corrected",
        "outrider/core/generation.py",
        "self._target.held = before + last\n",
        "self._target.held = before + last + 1\n",
        (f"{GENERATION}::test_the_span_of_a_round_starts_at_what_the_target_holds",),
    ),
    Mistake(
        "a round sent ahead is kept although it assumed another bonus token",
        "outrider/core/target_progress.py",
        "is_whole and next_token_id == later.pending",
        "is_whole",
        (f"{GENERATION}::test_every_policy_and_running_ahead_write_the_targets_own_text",),
    ),
    Mistake(
        "an answer counts for the oldest round whichever it answers",
        "outrider/core/target_progress.py",
        "if each.round.number == number:",
        "if each.round.number:",
        (f"{CONTINUING}::test_an_answer_to_a_round_that_nobody_sent_changes_nothing",),
    ),
    Mistake(
        "what a target wrote once more is committed twice",
        "outrider/core/verdicts.py",
        "    if not known:\n        return answer\n",
        "    if known >= 0:\n        return answer\n",
        (f"{CONTINUING}::test_what_is_written_once_more_is_not_committed_twice",),
    ),
    Mistake(
        "a target writes by itself after the end of the text",
        "target_service/verifier.py",
        "or self._ends(added)",
        "",
        (
            "tests/services/test_continuing.py::test_it_stops_at_the_token_limit_and_at_an_end_token",
        ),
    ),
    Mistake(
        "a target that was opened again is not sent the text again",
        "outrider/core/target_progress.py",
        "self.is_open, self.continues = True, continues\n        self.held = 0\n",
        "self.is_open, self.continues = True, continues\n",
        (f"{GENERATION}::test_a_stream_may_come_back_to_a_replica_that_was_left",),
    ),
    Mistake(
        "a span is appended where it should replace",
        "outrider/messages.py",
        "[*held[: span.position], *span.token_ids]",
        "[*held, *span.token_ids]",
        ("tests/unit/test_messages.py::test_a_span_replaces_everything_from_its_position_on",),
    ),
    Mistake(
        "a cut keeps a position whose row is wanted",
        "outrider/engine/cache.py",
        "len(wanted) - row_count)",
        "len(wanted) - row_count + 1)",
        (f"{CACHE}::test_a_position_whose_row_is_wanted_is_decoded_again",),
    ),
    Mistake(
        "a cut believes that the model kept what it was asked to keep",
        "outrider/engine/job.py",
        "            del held[self._model.truncate(self.session.sequence, token_count) :]",
        "            self._model.truncate(self.session.sequence, token_count)\n"
        "            del held[token_count:]",
        ("tests/engine/test_host.py::test_what_the_memory_no_longer_has_is_read_again",),
    ),
    Mistake(
        "a stop sequence leaves the tokens behind it in the text",
        "outrider/core/generation.py",
        "        del self.committed[length:]\n",
        "",
        (f"{GENERATION}::test_a_stop_sequence_takes_back_what_was_committed_behind_it",),
    ),
    # --- drafts that were sent away ---
    Mistake(
        "a draft that joined well is shown as sent away",
        "orchestrator/joined_drafts.py",
        "            self._refused.forget(draft.address)",
        "            pass",
        (
            "tests/services/test_joined_drafts.py"
            "::test_a_draft_that_breaks_the_protocol_is_shown_until_it_joins_well",
        ),
    ),
    # --- prompts read while others generate ---
    Mistake(
        "who was just answered is taken to have gone, and a prompt to be alone",
        "outrider/engine/scheduler.py",
        "if now - self._decoding - each.answer_time < _IN_FLIGHT",
        "if False",
        (f"{READING}::test_who_comes_back_a_little_later_is_not_taken_to_have_gone",),
    ),
    Mistake(
        "a decode that somebody misses is as long as one that carries him",
        "outrider/engine/reading.py",
        "promised / 2.0 if missing else promised",
        "promised",
        (f"{READING}::test_nobody_waits_longer_than_twice_what_was_promised",),
    ),
    Mistake(
        "what decodes with prompts take is never learned",
        "outrider/engine/reading.py",
        "self._read = others, prompts, seconds",
        "pass",
        (f"{READING}::test_where_many_rows_cost_no_more_than_few_large_parts_are_read",),
    ),
    Mistake(
        "rounds that were measured beside others' work are believed",
        "outrider/engine/scheduler.py",
        "self._reading.note_round([(len(c.token_ids), c.position) for c in chunks], seconds)",
        "pass",
        (f"{READING}::test_a_table_that_is_wrong_by_much_is_not_believed",),
    ),
    Mistake(
        "while a prompt is read, no round shows what one takes now",
        "outrider/engine/scheduler.py",
        "if present and self._since_round >= PROMISED_ROUNDS",
        "if False",
        (f"{READING}::test_where_every_decode_takes_much_more_from_now_on_larger_parts_are_read",),
    ),
    # --- the draft's line ---
    Mistake(
        "a frame of an older base changes the line",
        "outrider/core/draft_line.py",
        " or frame.base < self.base",
        "",
        (f"{RECEIVED}::test_a_frame_of_an_older_base_changes_nothing",),
    ),
    Mistake(
        "tokens before a lost frame are never compared with the text",
        "outrider/core/draft_line.py",
        "            self._early.update(enumerate(self.token_ids, self.start))\n",
        "",
        (f"{RECEIVED}::test_what_came_before_a_gap_must_agree_with_the_text_too",),
    ),
    Mistake(
        "an answer to an older order completes the newest",
        "outrider/core/draft_progress.py",
        "if order == self.order:",
        "if order <= self.order:",
        ("tests/unit/test_draft_progress.py::test_an_older_order_completes_nothing",),
    ),
    Mistake(
        "a block of the rejection rule serves as a part of another block",
        "draft_service/drafter.py",
        "if self._rule is Rule.REJECTION and self.base != len(text):",
        "if self._rule is Rule.REJECTION and self.base is None:",
        ("tests/unit/test_line.py::test_a_rejection_line_starts_over_even_where_it_agrees",),
    ),
    # --- noise and sampling ---
    Mistake(
        "shared noise is the same at every position",
        "outrider/noise.py",
        "return _mix((key + position * _SEED) & _MASK)",
        "return _mix(key)",
        (f"{NOISE}::test_seeds_streams_positions_and_ids_give_different_numbers",),
    ),
    Mistake(
        "all choices of a request draw the same numbers",
        "outrider/noise.py",
        "(int(purpose) << 32) | choice",
        "int(purpose) << 32",
        (f"{NOISE}::test_choices_purposes_rounds_and_positions_give_different_numbers",),
    ),
    Mistake(
        "a temperature next to 0 is divided by",
        "outrider/sampling.py",
        "if self.temperature >= _NEAR_ZERO:",
        "if self.temperature > 0.0:",
        (
            "tests/unit/test_sampling.py"
            "::test_a_tiny_temperature_gives_the_largest_logit_and_no_overflow",
        ),
    ),
    Mistake(
        "penalties look at as many tokens as DRY does",
        "outrider/engine/llama_sampling.py",
        "self._within_context(its.repeat_last_n)",
        "self._within_context(its.dry_penalty_last_n)",
        (
            "tests/engine/test_sampling_chains.py"
            "::test_each_sampler_changes_the_distribution_as_llama_cpps_does",
        ),
    ),
    Mistake(
        "two threads sample on one array of candidates",
        "outrider/engine/llama_sampling.py",
        "class _Desk(threading.local):",
        "class _Desk:",
        (
            "tests/engine/test_workers.py"
            "::test_two_threads_sample_with_one_models_chains_without_seeing_each_other",
        ),
    ),
    Mistake(
        "rows that were sampled side by side go to who was sooner",
        "outrider/engine/workers.py",
        "for number in range(self._count)]",
        "for number in outcomes]",
        (
            "tests/engine/test_workers.py"
            "::test_outcomes_come_in_order_where_the_first_work_ends_last",
        ),
    ),
    Mistake(
        "a sampler keeps the state of a text that was taken back",
        "outrider/engine/sampler_state.py",
        "if not self._settled_text or not _starts_with(text, self._settled_text):",
        "if not self._settled_text:",
        ("tests/unit/test_sampler_state.py",),
    ),
    Mistake(
        "logprobs from before and after sampling are exchanged",
        "target_service/verifier.py",
        "distribution if options.after_sampling else softmax(row)",
        "softmax(row) if options.after_sampling else distribution",
        (
            "tests/services/test_every_sampler.py"
            "::test_logprobs_after_sampling_are_those_of_the_distribution",
        ),
    ),
    Mistake(
        "a stop sequence is found only within one token",
        "outrider/core/text.py",
        "self._release(len(pending) - _longest_start(pending, self._stops))",
        "self._release(len(pending))",
        ("tests/unit/test_text.py::test_a_stop_sequence_is_found_across_tokens",),
    ),
    # --- when to draft, and for how long to wait ---
    Mistake(
        "a draft that was given up is never tried again",
        "outrider/core/speculate.py",
        "        self.rates.retry.unused += outcome.decodes\n",
        "",
        (f"{SPECULATE}::test_a_draft_that_does_not_pay_is_tried_again_ever_more_rarely",),
    ),
    Mistake(
        "the draft is waited for without end",
        "outrider/core/control.py",
        "return now >= self._waited_since + self._timeout()",
        "return False",
        (f"{SPECULATE}::test_a_fixed_length_is_waited_for_until_its_timeout",),
    ),
    # --- bounds ---
    Mistake(
        "messages of a peer are not counted",
        "outrider/core/allowance.py",
        "        self._messages -= 1\n",
        "",
        ("tests/unit/test_allowance.py::test_messages_without_end_are_refused",),
    ),
    Mistake(
        "every text may try a peer that was ejected, at once",
        "outrider/core/health.py",
        "(state is State.HALF_OPEN and not text_count)",
        "state is State.HALF_OPEN",
        ("tests/unit/test_health.py",),
    ),
    Mistake(
        "the ejections of a peer that fails again and again stay short",
        "outrider/core/health.py",
        "        self.ejections += 1\n",
        "        self.ejections = 1\n",
        ("tests/unit/test_health.py",),
    ),
    Mistake(
        "a target that is away ends a text after some tries, as one that fails",
        "orchestrator/fail_over.py",
        "self._count += failed.is_counted",
        "self._count += 1",
        ("tests/unit/test_fail_over.py",),
    ),
    Mistake(
        "an engine that was idle before it was asked anything is stuck",
        "outrider/core/health.py",
        "min(waited, idle) > max",
        "idle > max",
        ("tests/unit/test_health.py",),
    ),
    Mistake(
        "each piece of a body has the whole limit to itself",
        "gateway/middleware.py",
        'left -= len(message.get("body", b""))',
        'left = self._most - len(message.get("body", b""))',
        (
            "tests/http/test_gateway.py"
            "::test_a_long_body_is_refused_whether_it_says_its_length_or_not",
        ),
    ),
    Mistake(
        "a page of a job may exceed what a message holds",
        "outrider/wire_responses.py",
        "size <= PAGE_BYTES",
        "size <= 100 * PAGE_BYTES",
        ("tests/services/test_jobs.py::test_a_result_beyond_a_message_is_polled_in_pages",),
    ),
    # --- requests that come again ---
    Mistake(
        "a key brings the answer of another request",
        "orchestrator/log.py",
        "if entry is not None and entry.digest != digest:",
        "if entry is not None and not entry.digest:",
        (LOG,),
    ),
    Mistake(
        "a key is everybody's",
        "orchestrator/log.py",
        "return digest_of(*sorted(credentials), key.encode())",
        "return digest_of(key.encode())",
        (LOG,),
    ),
    Mistake(
        "what is in flight makes room",
        "orchestrator/log.py",
        "over = [entry for entry in self.entries.values() if entry.is_over]",
        "over = list(self.entries.values())",
        (LOG,),
    ),
    Mistake(
        "an event can be read before it is stored",
        "orchestrator/log.py",
        "        entry.events.append(data)\n",
        "        entry.events.append(data)\n        entry.stored = entry.end\n",
        (LOG,),
    ),
    Mistake(
        "a job begins anew after a restart",
        "orchestrator/jobs.py",
        "self._generate(request, turn, reported)",
        "self._generate(request, turn, NOTHING_REPORTED)",
        ("tests/services/test_kept_jobs.py::test_jobs_are_polled_to_their_ends_after_kill_9",),
    ),
    Mistake(
        "an answer that failed within its stream is sent again",
        "gateway/repeats.py",
        "        self.is_failed = True\n",
        "        pass\n",
        ("tests/http/test_repeats.py::test_what_failed_is_tried_again",),
    ),
    Mistake(
        "an idle stream of lines has an empty one, at which Ollama's clients fail",
        "gateway/event_streams.py",
        'LINES = Framing("application/x-ndjson", line, b" ")',
        'LINES = Framing("application/x-ndjson", line, b"\\n")',
        ("tests/http/test_ollama.py::test_an_idle_stream_has_blanks_that_its_client_does_not_see",),
    ),
    Mistake(
        "a control token in a file that an editor sends is one in the prompt",
        "orchestrator/service.py",
        "tokenize_texts(texts, hosted, deadline, add_special=False)",
        "tokenize_texts(texts, hosted, deadline, add_special=False, parse_special=True)",
        ("tests/services/test_infill.py::test_a_control_token_in_a_file_is_text",),
    ),
    Mistake(
        "a text whose time is over ends within its first line",
        "gateway/time_limit.py",
        "if has_line and clock()",
        "if clock()",
        ("tests/http/test_infill.py::test_a_text_ends_with_a_line_when_its_time_is_over",),
    ),
    # --- refusals ---
    Mistake(
        "another model under the same name is taken for the one that is meant",
        "outrider/messages.py",
        "if self.identity and self.identity != hosted.identity:",
        "if self.identity and self.name != hosted.name:",
        ("tests/unit/test_messages.py::test_the_identity_says_which_model_is_meant",),
    ),
    Mistake(
        "token names are not compared where the digests differ",
        "outrider/handshake.py",
        "return target.digest != draft.digest",
        "return False",
        ("tests/unit/test_handshake.py::test_another_digest_asks_for_a_comparison_of_names",),
    ),
    Mistake(
        "any token opens the door",
        "outrider/grants.py",
        "hmac.compare_digest(digest, grant.digest)",
        "hmac.compare_digest(digest, digest)",
        ("tests/unit/test_security.py::test_only_the_token_itself_once_opens_the_door",),
    ),
    Mistake(
        "a client may what operators may",
        "outrider/grants.py",
        "return right in self.rights",
        "return bool(self.rights)",
        ("tests/unit/test_grants.py::test_a_token_may_what_its_right_says",),
    ),
    Mistake(
        "an ended generation still counts as in flight",
        "outrider/access.py",
        "            self._ledger.end(caller.name, completion_count)",
        "            pass",
        ("tests/services/test_rights.py::test_a_generation_counts_once_whichever_way_it_came",),
    ),
    Mistake(
        "one token polls the jobs of another",
        "orchestrator/service.py",
        "self._jobs.owner(job_id) != caller.own_name and not",
        "self._jobs.owner(job_id) == '' and not",
        ("tests/services/test_rights.py::test_a_job_is_there_for_its_own_token_and_for_operators",),
    ),
    Mistake(
        "a host whose name only ends like loopback's is let in",
        "gateway/middleware.py",
        'name.endswith(".localhost")',
        'name.endswith("localhost")',
        ("tests/http/test_connections.py::test_no_other_host_is_taken_for_loopback",),
    ),
    Mistake(
        "a draining orchestrator takes new generations",
        "orchestrator/service.py",
        "        self._take_work()\n        events =",
        "        events =",
        ("tests/services/test_going_away.py::test_http_grpc_and_jobs_drain_together",),
    ),
    # --- the engine ---
    Mistake(
        "two jobs of one session run at the same time",
        "outrider/engine/scheduler.py",
        " if session not in self._active]",
        "]",
        ("tests/unit/test_scheduler.py::test_jobs_of_a_session_start_one_after_the_other",),
    ),
    Mistake(
        "a prefix is shared with a caller of another salt",
        "outrider/engine/cache.py",
        " and s.salt == salt]",
        "]",
        (f"{CACHE}::test_a_session_of_another_salt_is_neither_counted_nor_copied",),
    ),
    Mistake(
        "a cut sequence is believed whole although cells of its window are gone",
        "outrider/engine/rollback.py",
        "return 0 <= self._memory.first_position(sequence) <= needed",
        "return needed >= 0",
        (
            "tests/engine/test_memories.py"
            "::test_a_sequence_that_lost_what_it_needs_says_that_it_is_empty",
        ),
    ),
    Mistake(
        "rows are not padded",
        "outrider/engine/llama.py",
        "return -(-row_count // self.pad_multiple) * self.pad_multiple",
        "return row_count",
        ("tests/engine/test_llama.py::test_what_would_abort_the_process_is_an_assertion",),
    ),
    Mistake(
        "pad rows stay in the memory",
        "outrider/engine/llama.py",
        "                    self._cut(sequence, end)\n",
        "                    pass\n",
        ("tests/engine/test_llama.py::test_pad_rows_are_cut_again",),
    ),
    Mistake(
        "what was measured with other threads is believed",
        "outrider/model_service/run.py",
        'alias="", threads=threads)',
        'alias="", threads=0)',
        (
            "tests/engine/test_measurements.py"
            "::test_every_option_of_the_engine_is_part_of_the_conditions",
        ),
    ),
    # --- grammars ---
    Mistake(
        "a text may end anywhere in a grammar",
        "outrider/engine/grammar_matcher.py",
        "allowed[self._vocabulary.is_end] = self.can_end",
        "allowed[self._vocabulary.is_end] = True",
        ("tests/engine/test_grammar_matcher.py",),
    ),
    Mistake(
        "a mask skips the text that a grammar forces",
        "outrider/grammar/lark.py",
        '{"no_forcing": true}',
        "{}",
        ("tests/engine/test_grammar_matcher.py", "tests/engine/test_grammar.py"),
    ),
    Mistake(
        "a lexeme may be the beginning of another",
        "outrider/grammar/lexemes.py",
        "        if not clashes:\n",
        "        if True:\n",
        ("tests/unit/test_lark.py",),
    ),
    # --- what is told of sources ---
    Mistake(
        "a source keeps what it had accepted behind a stop sequence",
        "outrider/core/counts.py",
        "            self.sources[name].accepted -= 1\n",
        "            pass\n",
        (f"{GENERATION}::test_a_stop_sequence_takes_back_what_was_committed_behind_it",),
    ),
    Mistake(
        "the model would have had the token accepted that the text did not take",
        "outrider/core/remote_draft.py",
        "count if agrees else count - 1",
        "count",
        (f"{GENERATION}::test_what_the_model_would_have_had_accepted_is_counted_used_or_not",),
    ),
    Mistake(
        "decodes that only read count as steps of the draft",
        "outrider/engine/runner.py",
        "spent.add_step(bool(its_rows))",
        "spent.add_step(True)",
        ("tests/engine/test_host.py::test_steps_are_the_decodes_that_gave_rows",),
    ),
    Mistake(
        "what nobody tells of a source is a 0 in the metrics",
        "gateway/metrics.py",
        "((name, amount) for name, amount in reported.items() if amount is not None)",
        "((name, amount or 0.0) for name, amount in reported.items())",
        ("tests/http/test_metrics.py::test_each_source_of_draft_tokens_has_its_counters",),
    ),
    # --- the target's own draft ---
    Mistake(
        "the own draft keeps what the text took back",
        "outrider/engine/model_draft.py",
        "del session.token_ids[self.model.truncate(session.sequence, count) :]",
        "pass",
        (f"{OWN_ENGINE}::test_it_drafts_what_the_model_would_write_after_every_text",),
    ),
    Mistake(
        "a text of another salt is taken for one's own",
        "outrider/engine/own_draft.py",
        "self._cache.place(session, text, busy, line.salt,",
        'self._cache.place(session, text, busy, b"",',
        (f"{OWN_ENGINE}::test_what_another_session_of_its_salt_holds_is_not_read_again",),
    ),
    Mistake(
        "a drawn draft gives way before it is judged",
        "target_service/verifier.py",
        "gives_way and not drawn)",
        "gives_way)",
        (f"{OWN_LOSSLESS}::test_what_is_drawn_is_judged_before_a_newer_round_takes_over",),
    ),
    Mistake(
        "a drawn text is drawn again where its cache is lost",
        "target_service/verifier.py",
        "self._opening.rule is Rule.REJECTION or len(lease.held)",
        "len(lease.held)",
        (f"{OWN_LOSSLESS}::test_a_text_whose_cache_is_lost_is_not_drawn_again",),
    ),
    Mistake(
        "an end in a drawn draft ends it",
        "target_service/verifier.py",
        "DraftAsk(text, wanted, self._guess, gives_way=gives_way)",
        "DraftAsk(text, wanted, self._guess, 0, self._opening.end_token_ids, gives_way)",
        (f"{OWN_LOSSLESS}::test_neither_doubt_nor_an_end_in_it_ends_a_draft_that_is_drawn",),
    ),
    Mistake(
        "a target answers what p gives where the rule lets another token follow",
        "outrider/core/acceptance.py",
        "        verdict.next_token_id,\n        *(",
        "        targets[count].draw(u(Purpose.NEXT, count)),\n        *(",
        (f"{OWN_LOSSLESS}::test_what_is_judged_at_the_target_has_its_distribution",),
    ),
    Mistake(
        "a text is continued where nothing may follow",
        "outrider/core/acceptance.py",
        "    if verdict.accepted_count < count:\n",
        "    if verdict.accepted_count <= len(draft):\n",
        (
            "tests/exact/test_block_verification_is_lossless.py"
            "::test_a_token_that_nothing_may_follow_is_as_likely_as_any_other",
        ),
    ),
    Mistake(
        "a long text is never read to its end",
        "outrider/engine/model_draft.py",
        "        is_late = False  # one piece at least, or it would never come to the end\n",
        "        is_late = True\n",
        (f"{OWN_ENGINE}::test_a_long_text_is_read_a_piece_at_a_time_and_drafts_come_then",),
    ),
    Mistake(
        "a head in a draft service is asked without the row that it drafts from",
        "outrider/core/remote_draft.py",
        "        if draft.row_width and self._rows.end != length - 1:\n",
        "        if draft.row_width < 0:\n",
        (HEAD_ORDERS,),
    ),
    Mistake(
        "the hidden rows of rejected tokens are sent to a head",
        "outrider/core/remote_draft.py",
        "self._rows.followed_by(rows).until(length - 1)",
        "self._rows.followed_by(rows)",
        (HEAD_ORDERS,),
    ),
    Mistake(
        "a target sends the hidden rows of what it rejected",
        "target_service/verifier.py",
        "begin, len(text) - 1 if added else None)",
        "begin, None)",
        ("tests/services/test_hidden_rows.py",),
    ),
    Mistake(
        "a head in a draft service keeps what it read with its own rows",
        "outrider/engine/head_model.py",
        "begin = held.sure if held.is_given(held.sure - 1) or not held.sure else held.read",
        "begin = held.read",
        ("tests/engine/test_head_model.py",),
    ),
    Mistake(
        "hidden rows that are no numbers enter a head's cache",
        "outrider/engine/hidden_rows.py",
        "    return np.nan_to_num(rows, copy=False, nan=0.0, posinf=0.0, neginf=0.0)",
        "    return rows",
        ("tests/unit/test_row_window.py",),
    ),
    Mistake(
        "a head elsewhere drafts ahead of its target's rows",
        "outrider/core/control.py",
        "        return self.rule is not Rule.REJECTION and not self.rates.is_head\n",
        "        return self.rule is not Rule.REJECTION\n",
        (HEAD_ORDERS,),
    ),
    Mistake(
        "a head takes its own rows for the target's",
        "outrider/engine/head_draft.py",
        "session.token_ids.extend(line.ask.text[len(session.token_ids) : held])",
        "session.token_ids[:] = line.tokens",
        (f"{OWN_HEAD}::test_it_drafts_what_llama_cpp_s_own_driver_would",),
    ),
    Mistake(
        "a head reads the row of the token itself",
        "outrider/engine/head_draft.py",
        "rows[max(0, kept - lag - first) : len(text) - 1 - first]",
        "rows[max(0, kept - first) : len(text) - first]",
        (f"{OWN_HEAD}::test_it_drafts_what_llama_cpp_s_own_driver_would",),
    ),
    Mistake(
        "every token is drafted by the first block",
        "outrider/engine/head_draft.py",
        "block = len(lines[0][0].guesses) if blocks > 1 else 0",
        "block = 0",
        (f"{OWN_HEAD}::test_of_several_blocks_each_drafts_a_token_as_in_llama_cpp",),
    ),
    Mistake(
        "a block that was not asked for a while does not read what it missed",
        "outrider/engine/head_draft.py",
        "min(line.ask.count, self._head.block_count)",
        "1",
        (f"{OWN_HEAD}::test_of_several_blocks_each_drafts_a_token_as_in_llama_cpp",),
    ),
    Mistake(
        "of what EAGLE-3's graph computes, the first logits are taken for the last",
        "outrider/engine/llama_heads.py",
        "outs = [len(each.token_ids) for each in rising]  # its graph computes all of them",
        "outs = [1] * len(rising)",
        (f"{HEAD_FILES}::test_it_drafts_what_llama_cpp_s_own_driver_would",),
    ),
    Mistake(
        "a head of blocks keeps what it read of a text that went back",
        "outrider/engine/block_draft.py",
        "            if self._head.held(place).stop > position:\n",
        "            if not position:\n",
        (f"{HEAD_FILES}::test_it_follows_a_text_that_goes_back_and_one_with_a_gap",),
    ),
    Mistake(
        "a head of blocks reads nothing of what leaves the window",
        "outrider/engine/block_draft.py",
        "        if begin < end - HIDDEN_ROWS:\n",
        "        if begin < 0:\n",
        (f"{HEAD_FILES}::test_a_head_of_blocks_reads_whole_texts_however_they_are_written",),
    ),
    Mistake(
        "the rows of a head's layers are joined in another order",
        "outrider/engine/llama_heads.py",
        "for layer in self._layers or (last,)",
        "for layer in reversed(self._layers or (last,))",
        (f"{HEAD_FILES}::test_it_drafts_what_llama_cpp_s_own_driver_would",),
    ),
    Mistake(
        "a head's ids of the target's tokens are taken as they are",
        "outrider/engine/gguf_check.py",
        "if not token_ids or not 0 <= min(token_ids) <= max(token_ids) < count:",
        "if not token_ids:",
        (f"{HEAD_FILES}::test_drafted_tokens_that_the_target_has_not_are_told",),
    ),
    Mistake(
        "a drafted answer that comes again is committed again",
        "outrider/core/verdicts.py",
        "return _rest_of(_accepted_rows(asked, answer), answer, committed)",
        "return answer",
        (f"{OWN_POLICY}::test_what_was_written_once_more_is_not_committed_twice",),
    ),
    Mistake(
        "an own draft that was once bad is never tried again",
        "outrider/core/speculate.py",
        "if not own.rates.retry.is_due:",
        "if True:",
        (f"{OWN_POLICY}::test_one_that_was_bad_is_tried_again",),
    ),
    Mistake(
        "a stop sequence takes back only what the last decode had accepted",
        "outrider/core/counts.py",
        "            self.accepted_by_round[-back] = kept\n",
        "            self.accepted_by_round[-1] = kept\n",
        (f"{OWN_POLICY}::test_a_stop_sequence_takes_back_accepted_tokens_of_several_decodes",),
    ),
    Mistake(
        "tokens of a tree are in the sequences of all leaves",
        "outrider/engine/branches.py",
        "own = [each for each, path in zip(sequences, paths, strict=True) if node in path]",
        "own = list(sequences)",
        ("tests/engine/test_trees.py::test_trees_of_several_sessions_in_one_decode",),
    ),
    Mistake(
        "the losers of a tree are kept",
        "outrider/engine/job.py",
        "for branch in self._branches[1:]:",
        "for branch in self._branches[2:]:",
        (
            "tests/engine/test_tree_jobs.py"
            "::test_a_session_holds_the_path_that_it_follows_and_nothing_else_is_left",
        ),
    ),
    Mistake(
        "a branch that is accepted is not copied to its session",
        "outrider/engine/job.py",
        "            self._model.copy_prefix(branch.sequence, own.sequence, length)\n",
        "            pass\n",
        (
            "tests/engine/test_tree_jobs.py"
            "::test_a_session_holds_the_path_that_it_follows_and_nothing_else_is_left",
        ),
    ),
    Mistake(
        "all tokens of a tree are sampled with one position's noise",
        "target_service/verifier.py",
        "len(text) + len(nodes)",
        "len(text)",
        ("tests/exact/test_trees_are_lossless.py",),
    ),
    Mistake(
        "a tree is asked for without its rows being worth it",
        "outrider/core/branching.py",
        "tree.is_chain or worth < least or ",
        "tree.is_chain or ",
        ("tests/unit/test_branching_rounds.py::test_a_branch_that_hardly_gains_is_not_asked_for",),
    ),
    Mistake(
        "a runner-up in a tree is as likely as a first choice that the draft is as sure of",
        "outrider/core/branching.py",
        "    chances[forked.fork] = forked.share\n",
        "",
        (
            "tests/unit/test_branching_rounds.py"
            "::test_a_runner_up_line_counts_with_what_the_token_beside_it_leaves",
        ),
    ),
    # --- runner-up lines ---
    Mistake(
        "a late piece of a line that was contradicted is taken for a new line",
        "outrider/core/draft_line.py",
        "if frame.line in self._gone or len(self._lines)",
        "if len(self._lines)",
        (f"{RUNNER_UPS}::test_a_late_piece_of_a_line_that_was_contradicted_is_no_line",),
    ),
    Mistake(
        "the text is sent from where another line of the draft ends",
        "outrider/core/draft_line.py",
        "if self.may_fork or self.start > sent:",
        "if self.start > sent:",
        (f"{RUNNER_UPS}::test_nobody_counts_on_what_a_draft_with_several_lines_went_on_with",),
    ),
    Mistake(
        "a runner-up line goes on though the line that it leaves was contradicted before",
        "outrider/core/draft_line.py",
        "return self.parent is None or self.parent.agrees(committed, min(self.fork, until))",
        "return True",
        (f"{RUNNER_UPS}::test_a_line_falls_with_the_one_that_it_leaves",),
    ),
    Mistake(
        "runner-up lines take the caches of others",
        "outrider/engine/runner.py",
        "kept = {*kept, *self.cache.lately_used(now - options.modest_idle_seconds)}",
        "pass",
        ("tests/services/test_runner_up_lines.py::test_runner_up_lines_evict_nobody",),
    ),
    Mistake(
        "texts that nobody came back to keep runner-up lines out",
        "outrider/engine/runner.py",
        "self.cache.lately_used(now - options.modest_idle_seconds)",
        "self.cache.lately_used(0.0)",
        ("tests/services/test_runner_up_lines.py",),
    ),
    Mistake(
        "a runner-up is as likely however unlikely the tokens before it are",
        "draft_service/runner_ups.py",
        "return math.prod(chances[self._length - self.base :])",
        "return chances[-1] if chances else 1.0",
        ("tests/unit/test_draft_runner_ups.py::test_a_runner_up_behind_an_unlikely_token_waits",),
    ),
    # --- one event after the other ---
    Mistake(
        "more happens to a text while what was committed is not taken",
        "orchestrator/event_queue.py",
        "while self._failure is None and not self._untaken:",
        "while self._failure is None:",
        ("tests/unit/test_event_queue.py::test_nothing_happens_while_something_is_untaken",),
    ),
    Mistake(
        "a stream that was closed is still read",
        "orchestrator/link.py",
        "        if not self.is_closed:\n",
        "        if True:\n",
        ("tests/unit/test_attempts.py",),
    ),
    # --- when a frame is due, and what tokens are worth ---
    Mistake(
        "waiting for its turn is taken for a draft's distance",
        "outrider/core/expected_frames.py",
        "way = self._way(now, base, seconds + waited)\n        if seconds > 0.0:",
        "way = self._way(now, base, seconds)\n        if seconds > 0.0:",
        ("tests/unit/test_expected_frames.py",),
    ),
    Mistake(
        "a few good rounds are taken for a draft that is always right",
        "outrider/core/rates.py",
        "_UNKNOWN = (4.0, 5.0)",
        "_UNKNOWN = (1.6, 2.0)",
        ("tests/unit/test_rates.py", "tests/unit/test_own_draft_policy.py"),
    ),
    # --- what decodes cost ---
    Mistake(
        "a cost that no forecast shows grows without bound",
        "outrider/costs.py",
        "_never_falling(self._bases), _never_falling(self._slopes)",
        "self._bases, self._slopes",
        ("tests/unit/test_costs.py::test_hours_of_decodes_leave_no_cost_without_bound",),
    ),
    Mistake(
        "what is only moved along with other costs drifts without bound",
        "outrider/costs.py",
        "if unknown := self._unknown(i):",
        "if unknown := 0.0:",
        (
            "tests/unit/test_costs.py::test_hours_of_decodes_leave_no_cost_without_bound",
            "tests/unit/test_costs.py"
            "::test_what_a_disturbance_taught_of_rows_that_are_not_decoded_since_is_forgotten",
        ),
    ),
    Mistake(
        "what eight sessions lost by a draft keeps it from one alone",
        "outrider/core/rates.py",
        "for count, its in self._by_sessions.items() if count <= round(sessions)]",
        "for its in self._by_sessions.values()]",
        (
            "tests/unit/test_rates.py::test_what_many_sessions_lost_by_a_draft_says_nothing_of_fewer",
        ),
    ),
    Mistake(
        "a draft ends early where others who share the decode draft on",
        "outrider/core/control.py",
        "if self._may_stop and not is_shared else ()",
        "if self._may_stop else ()",
        (
            "tests/unit/test_own_draft_policy.py"
            "::test_where_decodes_are_shared_no_draft_ends_before_the_others",
        ),
    ),
    # --- what a head is taught from ---
    Mistake(
        "drafts that were taken back are kept as text",
        "outrider/engine/row_keeper.py",
        "        self.cut(self.certain)\n",
        "",
        ("tests/engine/test_row_keeper.py::test_drafts_of_the_last_round_are_not_kept",),
    ),
    Mistake(
        "a text continues where another one was between",
        "outrider/engine/row_keeper.py",
        "if text is None or not text.certain <= new.position <= text.end:",
        "if text is None:",
        ("tests/engine/test_row_keeper.py",),
    ),
    Mistake(
        "a head takes the place of a better one",
        "tools/outrider_teach/watching.py",
        "found.score > scored.score + LEAST_GAIN",
        "found.score > 0",
        ("tests/tools/test_teach_watching.py::test_a_head_that_is_no_better_is_not_taken",),
    ),
)
