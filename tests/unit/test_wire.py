"""Protobuf to values and back: what goes out comes in again, and what is wrong is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import wire, wire_drafts, wire_rounds
from outrider.descriptions import own_source
from outrider.distribution import Distribution, logprobs, softmax
from outrider.errors import InvalidRequest
from outrider.messages import (
    MAX_DRAFT,
    MAX_LINES,
    MAX_PROMPT_BYTES,
    Answer,
    Form,
    Frame,
    Order,
    OwnDraftOrder,
    OwnTokens,
    Round,
    Rows,
    Rule,
    RunnerUp,
    ServiceTime,
    SessionParameters,
    Span,
)
from outrider.row_window import HIDDEN_ROWS, RowWindow
from outrider.sampling import SamplingParameters, Stage
from outrider.speculation import MODEL
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import target_service_pb2 as target

SIZE = 50
SETTINGS = settings(derandomize=True, deadline=None)

IDS = st.lists(st.integers(0, SIZE - 1), max_size=20)
DRAFTS = st.lists(st.integers(0, SIZE - 1), max_size=MAX_DRAFT)
POSITIONS = st.integers(0, 2**31 - 1)
SPANS = st.builds(Span, st.integers(0, 2**20), IDS)
TEXTS = st.builds(Span, st.integers(0, 2**20), IDS.filter(bool))
SAMPLING = st.builds(
    SamplingParameters,
    temperature=st.floats(0, 1000, width=32),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    dynatemp_range=st.floats(0, 1000),
    dynatemp_exponent=st.floats(0, 100),
    typical_p=st.floats(0, 1),
    top_n_sigma=st.floats(-1, 1e6),
    tfs_z=st.floats(0, 1),
    xtc_probability=st.floats(0, 1),
    xtc_threshold=st.floats(0, 1),
    min_keep=st.integers(0, 2**31 - 1),
    repeat_last_n=st.integers(-1, 2**31 - 1),
    repeat_penalty=st.floats(1e-3, 1e3),
    presence_penalty=st.floats(-1e3, 1e3),
    frequency_penalty=st.floats(-1e3, 1e3),
    penalize_newline=st.booleans(),
    dry_multiplier=st.floats(0, 1e3),
    dry_base=st.floats(0, 1e3),
    dry_allowed_length=st.integers(0, 2**31 - 1),
    dry_penalty_last_n=st.integers(-1, 2**31 - 1),
    dry_sequence_breakers=st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=10),
        max_size=16,
    ).map(tuple),
    mirostat=st.integers(0, 2),
    mirostat_tau=st.floats(0, 100),
    mirostat_eta=st.floats(0, 1),
    logit_bias=st.lists(
        st.tuples(st.integers(0, SIZE - 1), st.floats(-1e6, 1e6) | st.just(-math.inf)), max_size=5
    ).map(tuple),
    grammar=st.just("") | st.just('root ::= "a"'),
    stages=st.permutations(Stage).map(tuple),
)
OPENINGS = st.builds(
    SessionParameters,
    session_id=st.binary(min_size=16, max_size=16),
    attempt=POSITIONS,
    rule=st.sampled_from(Rule),
    sampling=SAMPLING,
    seed=st.integers(-(2**63), 2**63 - 1),
    choice=POSITIONS,
    prompt_count=st.integers(1, 2**31 - 1),
    token_limit=POSITIONS,
    vocabulary=st.integers(1, 2**31 - 1),
    own_prompt=st.text(st.characters(codec="utf-8"), max_size=20),
)


@st.composite
def distributions(draw: st.DrawFn, weights: st.SearchStrategy[float]) -> Distribution:
    ids = draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=8, unique=True))
    values = draw(st.lists(weights, min_size=len(ids), max_size=len(ids)))
    return Distribution(np.array(ids, np.int32), np.array(values, np.float64))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    rows = draw(st.lists(distributions(st.integers(1, 65535).map(float)), max_size=4))
    if rows:
        ids = [int(draw(st.sampled_from(row.token_ids.tolist()))) for row in rows]
    else:
        ids = draw(IDS)
    base = draw(st.integers(0, 2**20))
    return Frame(
        base=base,
        position=base + draw(st.integers(0, 64)),
        token_ids=ids,
        confidences=draw(st.binary(min_size=len(ids), max_size=len(ids))),
        rows=rows,
        completed=draw(POSITIONS),
    )


def assert_same_rows(left: list[Distribution], right: list[Distribution]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.weights, other.weights)


def sent(message: Any) -> Any:
    """Return the message as it arrives."""
    return type(message).FromString(message.SerializeToString())


# what goes out comes in again


@SETTINGS
@given(OPENINGS)
def test_an_opening_comes_in_as_it_went_out(opening: SessionParameters) -> None:
    assert wire.read_opening(sent(wire.write_opening(opening))) == opening


@SETTINGS
@given(SPANS)
def test_a_span_comes_in_as_it_went_out(span: Span) -> None:
    assert wire.read_span("committed", sent(wire.write_span(span)), SIZE) == span


@SETTINGS
@given(
    st.integers(1, 2**31 - 1),
    TEXTS,
    st.integers(-5, MAX_DRAFT),
    st.integers(0, MAX_DRAFT),
    st.integers(0, 255),
)
def test_an_order_comes_in_as_it_went_out(
    number: int, text: Span, ahead: int, frame_tokens: int, stop_below: int
) -> None:
    lines = 1 + number % MAX_LINES
    until = max(0, text.end + ahead)
    order = Order(number, text, until, frame_tokens, stop_below, lines, stop_below / 256)
    assert wire_drafts.read_order(sent(wire_drafts.write_order(order)).order, SIZE) == order


HIDDEN = RowWindow(3, (b"\1\2\3\4", b"\5\6\7\x08"))


def test_hidden_rows_come_in_as_they_went_out() -> None:
    order = Order(2, Span(4, [5, 6]), 8, rows=HIDDEN)
    assert wire_drafts.read_order(sent(wire_drafts.write_order(order)).order, SIZE) == order
    round_ = Round(1, Span(4, [5, 6]), [], Form.SAMPLED, wants_rows=True)
    assert wire_rounds.read_round(sent(wire_rounds.write_round(round_)).round, SIZE) == round_
    answer = Answer(1, 5, 0, Rows([7]), hidden=HIDDEN)
    read = wire_rounds.read_answer(sent(wire_rounds.write_answer(answer, 0)), SIZE)
    assert (read.position, read.hidden) == (answer.position, HIDDEN)


def test_rows_beyond_an_order_s_text_are_refused() -> None:
    """The row of its last token follows from that alone where the target has decoded it."""
    order = Order(2, Span(4, [5]), 8, rows=HIDDEN)
    with pytest.raises(InvalidRequest, match="hidden_rows"):
        wire_drafts.read_order(wire_drafts.write_order(order).order, SIZE)


def test_more_rows_than_a_window_has_are_refused() -> None:
    message = wire_rounds.write_answer(Answer(1, 5, 0, Rows([7]), hidden=HIDDEN), 0)
    message.hidden_rows.rows.extend([b"12"] * HIDDEN_ROWS)
    with pytest.raises(InvalidRequest, match="hidden_rows"):
        wire_rounds.read_answer(message, SIZE)


@SETTINGS
@given(frames())
def test_a_frame_comes_in_as_it_went_out(frame: Frame) -> None:
    read = wire_drafts.read_frame(sent(wire_drafts.write_frame(frame)), SIZE)
    assert_same_rows(list(read.rows), list(frame.rows))
    for name in ("base", "position", "token_ids", "confidences", "completed"):
        assert getattr(read, name) == getattr(frame, name)


def test_runner_up_lines_come_in_as_they_went_out() -> None:
    pieces = [RunnerUp(7, 3, 12, 14, [4, 5], b"\1\2"), RunnerUp(8, 7, 13, 13, [1], b"\3")]
    frame = Frame(10, 12, [6], b"\4", line=3, runner_ups=pieces)
    read = wire_drafts.read_frame(sent(wire_drafts.write_frame(frame)), SIZE)
    assert (read.line, read.runner_ups) == (3, pieces)
    without = wire_drafts.write_frame(Frame(10, 12, [6]))
    assert wire_drafts.read_frame(sent(without), SIZE).runner_ups == []


def test_an_order_of_one_line_is_the_message_that_it_was() -> None:
    order = Order(1, Span(0, [5]), 3)
    assert not {each.name for each, _ in wire_drafts.write_order(order).order.ListFields()} & {
        "parallel_line_count",
        "split_probability",
    }
    assert wire_drafts.read_order(sent(wire_drafts.write_order(order)).order, SIZE).line_count == 1


@SETTINGS
@given(st.integers(1, 2**31 - 1), TEXTS, DRAFTS, st.sampled_from(Form))
def test_a_round_comes_in_as_it_went_out(
    number: int, text: Span, guesses: list[int], form: Form
) -> None:
    round_ = Round(number, text, guesses, form)
    assert wire_rounds.read_round(sent(wire_rounds.write_round(round_)).round, SIZE) == round_


@SETTINGS
@given(TEXTS, DRAFTS, st.integers(1, 512), st.integers(0, 64), st.integers(0, 255))
def test_a_round_that_lets_the_target_continue_comes_in_as_it_went_out(
    text: Span, guesses: list[int], count: int, limit: int, stop_below: int
) -> None:
    round_ = Round(
        3,
        text,
        guesses,
        Form.SAMPLED,
        continue_count=count,
        decode_limit=limit if guesses else 0,
        gathers=limit > 9,
        own_draft=OwnDraftOrder(limit, stop_below),
    )
    assert wire_rounds.read_round(sent(wire_rounds.write_round(round_)).round, SIZE) == round_


@SETTINGS
@given(st.integers(1, 2**31 - 1), POSITIONS, IDS.filter(bool), st.data())
def test_an_answer_comes_in_as_it_went_out(
    number: int, position: int, sampled: list[int], data: st.DataObject
) -> None:
    drafted = data.draw(st.integers(0, len(sampled) - 1))
    answer = Answer(number, position, drafted, Rows(sampled))
    message = sent(wire_rounds.write_answer(answer, 0))
    assert message.HasField("position")
    read = wire_rounds.read_answer(message, SIZE)
    assert (read.round, read.position, read.drafted) == (number, position, drafted)
    assert read.rows.sampled == sampled


@SETTINGS
@given(st.lists(st.lists(st.integers(0, SIZE - 1), max_size=6), min_size=1, max_size=6), st.data())
def test_what_a_target_drafted_itself_comes_in_as_it_went_out(
    drafts: list[list[int]], data: st.DataObject
) -> None:
    drafted = 0 if drafts[0] else data.draw(st.integers(0, 3))
    count = drafted + sum(len(draft) + 1 for draft in drafts)
    spent = ServiceTime(0.1, draft=0.5)
    owns = [OwnTokens(draft, bytes(len(draft)), spent) for draft in drafts]
    answer = Answer(1, 7, drafted, Rows([5] * count), owns, spent)
    message = sent(wire_rounds.write_answer(answer, 0))
    read = wire_rounds.read_answer(message, SIZE)
    assert read.spent == spent and all(own.spent == spent for own in read.own_drafts)
    assert [list(own.token_ids) for own in read.own_drafts] == drafts
    assert [len(rows) for _, rows in read.decodes] == [
        len(draft) + 1 + (drafted if i == 0 else 0) for i, draft in enumerate(drafts)
    ]
    assert read.decode_count == len(drafts)
    message.rows.token_ids.append(5)
    with pytest.raises(InvalidRequest, match="own_drafts"):
        wire_rounds.read_answer(message, SIZE)


OWN_NAMES = {"MTP": "mtp", "EAGLE3": "eagle3", "DFLASH": "dflash", "DSPARK": "dspark"}


def test_a_targets_own_draft_has_a_name_that_is_known_whatever_it_says_of_itself() -> None:
    heads = {kind: common.HeadKind.Value(f"HEAD_KIND_{kind}") for kind in OWN_NAMES}
    assert set(common.HeadKind.values()) == {0, *heads.values()}
    for kind, number in heads.items():
        described = common.OwnDraft(model_name="m", head=number)  # type: ignore[arg-type]
        assert own_source(described) == OWN_NAMES[kind]
    unknown = common.OwnDraft.FromString(b"\x28\x63")  # head: 99
    assert unknown.head == 99
    assert own_source(unknown) == own_source(common.OwnDraft(model_name="mtp")) == MODEL


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("own_draft_token_count", 65),
        ("own_draft_token_count", -1),
        ("own_draft_stop_below", 256),
    ],
)
def test_what_asks_too_much_of_a_targets_own_draft_is_refused(field: str, value: int) -> None:
    message = wire_rounds.write_round(Round(1, Span(0, [1]), (), Form.SAMPLED)).round
    setattr(message.continuation, field, value)
    with pytest.raises(InvalidRequest, match=field):
        wire_rounds.read_round(message, SIZE)


@SETTINGS
@given(
    IDS,
    st.lists(distributions(st.floats(1e-300, 1e300)), max_size=3),
    st.lists(st.binary(min_size=4 * SIZE, max_size=4 * SIZE), max_size=2),
)
def test_rows_come_in_as_they_went_out(
    sampled: list[int], distributions: list[Distribution], logits: list[bytes]
) -> None:
    message = sent(wire_rounds.write_rows(Rows(sampled, distributions, logits), 7))
    read = wire_rounds.read_rows(message, SIZE)
    assert message.first_row == 7
    assert (read.sampled, read.logits) == (sampled, logits)
    assert_same_rows(list(read.distributions), distributions)


@pytest.mark.parametrize("count", [1, 8, 320])
def test_log_probabilities_of_a_whole_row_come_in_as_they_went_out(count: int) -> None:
    p = softmax(np.linspace(-4, 4, 320, dtype=np.float32))
    row = Distribution(p.token_ids[:count], p.weights[:count])
    rows = Rows(distributions=[row], logprobs=[logprobs(p, 128, row.token_ids)])
    message = sent(wire_rounds.write_rows(rows, 0))
    [read] = wire_rounds.read_rows(message, 320).logprobs
    assert dict(read) == pytest.approx(dict(rows.logprobs[0]))
    message.logprobs[0].token_ids[:] = range(129 + count)
    with pytest.raises(InvalidRequest):
        wire_rounds.read_rows(message, 1000)


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_a_value(rule: Rule) -> None:
    assert wire.RULES.read(wire.RULES.write(rule)) is rule


@pytest.mark.parametrize("form", Form)
def test_every_form_has_a_value(form: Form) -> None:
    assert wire.FORMS.read(wire.FORMS.write(form)) is form


def test_unset_sampling_fields_take_their_defaults_and_zeros_stay() -> None:
    assert wire.read_sampling(common.SamplingParameters()) == SamplingParameters()
    greedy = wire.read_sampling(common.SamplingParameters(temperature=0.0))
    assert greedy == SamplingParameters(temperature=0.0)


def test_time_is_sent_in_whole_microseconds() -> None:
    spent = ServiceTime(2e-6, queue=0.5)
    assert wire.write_time(spent) == common.ServiceTime(queue_us=500_000, decode_us=2)


def test_a_time_of_hours_is_sent_as_the_longest_that_there_is() -> None:
    hours = wire.read_time(wire.write_time(ServiceTime(10_000.0, 9_000.0, 8_000.0, draft=7_000.0)))
    assert hours == ServiceTime(*[_MOST / 1e6] * 3, draft=_MOST / 1e6)


def test_no_steps_are_not_unknown_steps() -> None:
    for steps in (None, 0, 3):
        assert wire.read_time(wire.write_time(ServiceTime(steps=steps))).steps == steps


_MOST = 2**31 - 1


@pytest.mark.parametrize(
    "spent",
    [
        *({name: -1} for name in ("queue_us", "decode_us", "sample_us", "own_draft_us")),
        *({name: -(2**31)} for name in ("runner_up_us", "decoded_row_count", "step_count")),
        {"generating_session_count": -1},
        {"attended_token_count": -(2**63)},
        {"step_count": _MOST},
    ],
)
def test_a_time_that_no_service_can_have_taken_is_refused(spent: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        wire.read_time(common.ServiceTime(**spent))


# what is wrong is refused, by name


def opening_with(**fields: Any) -> common.OpenSession:
    message = common.OpenSession(
        session_id=bytes(16),
        attempt=1,
        acceptance_rule=common.ACCEPTANCE_RULE_MATCH,
        prompt_token_count=3,
        token_limit=5,
        vocabulary_token_count=SIZE,
    )
    message.MergeFrom(common.OpenSession(**fields))
    return message


def sampling_with(**fields: Any) -> common.SamplingParameters:
    return common.SamplingParameters(**fields)


def order_with(
    number: int, position: int, ids: list[int], until: int, **fields: int
) -> draft.DraftOrder:
    committed = common.TokenSpan(position=position, token_ids=ids)
    return draft.DraftOrder(order=number, committed=committed, draft_until=until, **fields)


def frame_with(**fields: Any) -> draft.DraftResponse:
    return draft.DraftResponse(frame=draft.DraftFrame(**fields))


def frame_of_piece(count: int = 1, **fields: Any) -> draft.DraftResponse:
    usual = {"line": 1, "fork_position": 2, "position": 2, "token_ids": [4]}
    piece = draft.RunnerUpLine(**(usual | fields))
    return frame_with(base=1, position=1, runner_up_lines=[piece] * count)


def frame_of_row(ids: list[int], weights: list[int], token_id: int = 4) -> draft.DraftResponse:
    row = draft.DraftDistribution(token_ids=ids, weights=weights)
    return frame_with(base=1, position=1, token_ids=[token_id], distributions=[row])


def round_with(
    number: int = 1, position: int = 0, ids: tuple[int, ...] = (1,), **fields: Any
) -> target.VerifyRound:
    prefix = common.TokenSpan(position=position, token_ids=ids)
    fields = {"row_form": common.ROW_FORM_SAMPLED} | fields
    return target.VerifyRound(round=number, prefix=prefix, **fields)


def rows_of_distribution(ids: list[int], weights: list[float]) -> target.Rows:
    return target.Rows(distributions=[target.RowDistribution(token_ids=ids, weights=weights)])


def read_order(message: Any) -> Any:
    return wire_drafts.read_order(message, SIZE)


def read_frame(message: Any) -> Any:
    return wire_drafts.read_frame(message, SIZE)


def read_round(message: Any) -> Any:
    return wire_rounds.read_round(message, SIZE)


def answer_with(ids: list[int], **fields: Any) -> target.VerifyResponse:
    return target.VerifyResponse(round=1, position=4, rows=target.Rows(token_ids=ids), **fields)


def read_answer(message: Any) -> Any:
    return wire_rounds.read_answer(message, SIZE)


def read_rows(message: Any) -> Any:
    return wire_rounds.read_rows(message, SIZE)


NAN, INF = float("nan"), float("inf")

REFUSED: list[tuple[Callable[[Any], Any], Any, str, str]] = [
    (wire.read_opening, opening_with(session_id=bytes(15)), "session_id", "16 bytes, not 15"),
    (wire.read_opening, opening_with(attempt=-1), "attempt", "at least 0, not -1"),
    (wire.read_opening, opening_with(choice_index=-1), "choice_index", "not -1"),
    (wire.read_opening, opening_with(prompt_token_count=-3), "prompt_token_count", "at least 1"),
    (wire.read_opening, opening_with(token_limit=-1), "token_limit", "at least 0"),
    (wire.read_opening, opening_with(vocabulary_token_count=-2), "vocabulary_token_count", "1"),
    (wire.read_opening, opening_with(acceptance_rule=99), "acceptance_rule", "unknown value 99"),
    (wire.read_opening, common.OpenSession(session_id=bytes(16)), "acceptance_rule", "value 0"),
    (wire.read_session_id, b"", "session_id", "not 0"),
    (wire.read_session_id, bytes(17), "session_id", "not 17"),
    (wire.read_sampling, sampling_with(temperature=-1.0), "temperature", r"\[0, 1000\]"),
    (wire.read_sampling, sampling_with(temperature=1001.0), "temperature", "1001"),
    (wire.read_sampling, sampling_with(temperature=NAN), "temperature", "nan"),
    (wire.read_sampling, sampling_with(temperature=INF), "temperature", "inf"),
    (wire.read_sampling, sampling_with(top_k=-1), "top_k", "-1"),
    (wire.read_sampling, sampling_with(typical_p=-0.5), "typical_p", r"\[0, 1\]"),
    (wire.read_sampling, sampling_with(mirostat=3), "mirostat", r"\[0, 2\]"),
    (wire.read_sampling, sampling_with(grammar="a\0b"), "grammar", "NUL"),
    (wire.read_sampling, sampling_with(samplers=[99]), "samplers", "unknown"),
    (
        wire.read_sampling,
        sampling_with(samplers=[common.SAMPLER_XTC, common.SAMPLER_XTC]),
        "samplers",
        "twice",
    ),
    (
        wire.read_sampling,
        sampling_with(logit_biases=[common.LogitBias(text="a", bias=1.0)]),
        "logit_biases",
        "id",
    ),
    (
        wire.read_sampling,
        sampling_with(logit_biases=[common.LogitBias(token_id=1, bias=math.inf)]),
        "logit_bias",
        "finite",
    ),
    (wire.read_sampling, sampling_with(top_p=1.5), "top_p", r"\[0, 1\]"),
    (wire.read_sampling, sampling_with(top_p=NAN), "top_p", "nan"),
    (wire.read_sampling, sampling_with(min_p=-0.5), "min_p", "-0.5"),
    (wire.read_sampling, sampling_with(min_p=2.0), "min_p", r"\[0, 1\]"),
    (read_order, order_with(0, 0, [1], 3), "order", "at least 1"),
    (read_order, order_with(1, -1, [1], 3), "committed.position", "not -1"),
    (read_order, order_with(1, 0, [], 3), "committed", "no token"),
    (read_order, order_with(1, 0, [1], -1), "draft_until", "at least 0"),
    (read_order, order_with(1, 4, [1], 70), "draft_until", "at most 64 past"),
    (read_order, order_with(1, 0, [1], 3, frame_token_count=65), "frame_token_count", "64"),
    (read_order, order_with(1, 0, [1], 3, parallel_line_count=9), "parallel_line_count", "8"),
    (read_order, order_with(1, 0, [1], 3, parallel_line_count=-1), "parallel_line_count", "8"),
    (read_order, order_with(1, 0, [1], 3, split_probability=2), "split_probability", "1"),
    (read_frame, frame_with(base=1, position=1, line=-1), "line", "at least 0"),
    (read_frame, frame_of_piece(line=0), "runner_up_lines.line", "at least 1"),
    (read_frame, frame_of_piece(line=2, parent_line=2), "runner_up_lines.line", "at least 3"),
    (read_frame, frame_of_piece(parent_line=-1), "parent_line", "at least 0"),
    (read_frame, frame_of_piece(fork_position=0), "fork_position", "at least 1"),
    (read_frame, frame_of_piece(position=1), "runner_up_lines.position", "at least 2"),
    (read_frame, frame_of_piece(token_ids=[SIZE]), "runner_up_lines.token_ids", "outside"),
    (read_frame, frame_of_piece(count=65), "runner_up_lines", "65, at most 64"),
    (read_frame, frame_of_piece(token_ids=[1] * 513), "runner_up_lines", "more than 512"),
    (read_order, order_with(1, 0, [1], 3, frame_token_count=-1), "frame_token_count", "64"),
    (
        read_order,
        order_with(1, 0, [1], 3, stop_below_confidence=256),
        "stop_below_confidence",
        "255",
    ),
    (
        read_order,
        order_with(1, 0, [1], 3, stop_below_confidence=-1),
        "stop_below_confidence",
        "255",
    ),
    (read_order, order_with(1, 0, [1, SIZE], 3), "committed.token_ids", r"50 is outside \[0, 50\)"),
    (read_order, order_with(1, 0, [-1, 1], 3), "committed.token_ids", "-1 is outside"),
    (read_frame, frame_with(base=-1), "base", "not -1"),
    (read_frame, frame_with(base=3, position=2), "position", "at least 3, not 2"),
    (read_frame, frame_with(token_ids=[SIZE]), "token_ids", "50 is outside"),
    (read_frame, frame_with(token_ids=[-7]), "token_ids", "-7 is outside"),
    (read_frame, frame_of_row([], []), "distributions", "distinct ids"),
    (read_frame, frame_of_row([4, 5], [1]), "distributions", "as many weights"),
    (read_frame, frame_of_row([4, 4], [1, 1]), "distributions", "distinct ids"),
    (read_frame, frame_of_row([4], [0]), "distributions", "out of range"),
    (read_frame, frame_of_row([4], [65536]), "distributions", "out of range"),
    (read_frame, frame_of_row([4], [-1]), "distributions", "out of range"),
    (read_frame, frame_of_row([5], [1]), "distributions", "not listed"),
    (read_frame, frame_of_row([4, SIZE], [1, 1]), "distributions.token_ids", "outside"),
    (read_round, round_with(number=0), "round", "at least 1"),
    (read_round, round_with(position=-1), "prefix.position", "not -1"),
    (read_round, round_with(ids=()), "prefix", "at least one token"),
    (read_round, round_with(ids=(SIZE,)), "prefix.token_ids", "outside"),
    (read_round, round_with(draft={"token_ids": [1] * 65}), "draft.token_ids", "at most 64"),
    (read_round, round_with(draft={"token_ids": [SIZE]}), "draft.token_ids", "outside"),
    (read_round, round_with(row_form=common.ROW_FORM_UNSPECIFIED), "row_form", "value 0"),
    (read_round, round_with(row_form=9), "row_form", "unknown value 9"),
    (read_round, round_with(continuation={"token_count": -1}), "continuation.token_count", "512"),
    (
        read_round,
        round_with(continuation={"token_count": 513}),
        "continuation.token_count",
        "512",
    ),
    (
        read_round,
        round_with(continuation={"token_count": 1}, row_form=common.ROW_FORM_LOGITS),
        "continuation.token_count",
        "SAMPLED",
    ),
    (
        read_round,
        round_with(draft={"decode_token_limit": -1}),
        "draft.decode_token_limit",
        "at least 0",
    ),
    (read_answer, answer_with([5, 6], drafted_token_count=2), "drafted_token_count", "2 of 2"),
    (read_answer, answer_with([5, 6], drafted_token_count=-1), "drafted_token_count", "-1 of 2"),
    (read_answer, answer_with([SIZE]), "token_ids", "outside"),
    (read_rows, target.Rows(token_ids=[SIZE]), "token_ids", "outside"),
    (read_rows, target.Rows(logits=[bytes(4 * SIZE - 4)]), "logits", "not 200 bytes"),
    (read_rows, rows_of_distribution([], []), "distributions", "as many weights"),
    (read_rows, rows_of_distribution([1, 2], [1.0]), "distributions", "as many weights"),
    (read_rows, rows_of_distribution([SIZE], [1.0]), "distributions.token_ids", "outside"),
    (
        read_rows,
        rows_of_distribution([1, 2], [1.0, -1.0]),
        "distributions",
        "negative or not finite",
    ),
    (
        read_rows,
        rows_of_distribution([1, 2], [1.0, NAN]),
        "distributions",
        "negative or not finite",
    ),
    (
        read_rows,
        rows_of_distribution([1, 2], [INF, 1.0]),
        "distributions",
        "negative or not finite",
    ),
    (read_rows, rows_of_distribution([1], [0.0]), "distributions", "negative or not finite"),
]


@pytest.mark.parametrize(("read", "message", "field", "said"), REFUSED)
def test_what_is_out_of_range_is_refused_by_name(
    read: Callable[[Any], Any], message: Any, field: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        read(message)
    assert caught.value.field == field
    assert caught.value.metadata["field"] == field


def test_a_row_of_too_many_entries_is_refused() -> None:
    ids = list(range(wire_drafts.MAX_SUPPORT + 1))
    with pytest.raises(InvalidRequest):
        wire_drafts.read_frame(frame_of_row(ids, [1] * len(ids)), len(ids))


@pytest.mark.parametrize("row_count", [1, 3])
def test_a_frame_with_rows_has_one_for_every_token(row_count: int) -> None:
    row = draft.DraftDistribution(token_ids=[4, 5], weights=[1, 1])
    message = frame_with(base=1, position=1, token_ids=[4, 5], distributions=[row] * row_count)
    with pytest.raises(InvalidRequest, match="distributions"):
        wire_drafts.read_frame(message, SIZE)


def test_weights_whose_sum_is_infinite_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="distributions"), np.errstate(over="ignore"):
        wire_rounds.read_rows(rows_of_distribution([1, 2], [1.7e308, 1.7e308]), SIZE)


@SETTINGS
@given(st.binary(max_size=80))
def test_garbage_is_read_or_refused_and_never_anything_else(data: bytes) -> None:
    readers: list[tuple[Any, Callable[[Any], Any]]] = [
        (draft.DraftResponse, read_frame),
        (draft.DraftOrder, read_order),
        (target.VerifyRound, read_round),
        (target.VerifyResponse, read_answer),
        (target.Rows, read_rows),
        (common.OpenSession, wire.read_opening),
    ]
    for kind, read in readers:
        try:
            message = kind.FromString(data)
        except Exception:  # protobuf's own refusal
            continue
        try:
            read(message)
        except InvalidRequest as error:
            assert error.field


def test_a_prompt_of_a_drafts_own_has_a_bound() -> None:
    opening = wire.write_opening(
        SessionParameters(
            session_id=bytes(16),
            attempt=1,
            rule=Rule.MATCH,
            sampling=SamplingParameters(),
            seed=1,
            choice=0,
            prompt_count=1,
            token_limit=1,
            vocabulary=SIZE,
            own_prompt="é" * (MAX_PROMPT_BYTES // 2),
        )
    )
    assert wire.read_opening(opening).own_prompt == opening.own_prompt
    opening.own_prompt += "a"
    with pytest.raises(InvalidRequest, match="own_prompt: 8388609 bytes"):
        wire.read_opening(opening)
