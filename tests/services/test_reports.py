"""What a round reports is what happened in it, and the probabilities are the models' own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.distribution import Distribution, distribution_of, most_probable, softmax
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire import read_sampling
from tests.support.services import PATIENCE, Trio, request, three_services, toy
from tests.support.toy import NEVER, ToyModel

TOKENS, CANDIDATES = messages.ROUND_DETAIL_TOKENS, messages.ROUND_DETAIL_CANDIDATES
ASKED = 8
"""Candidates of a position."""


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def trio() -> AsyncIterator[Trio]:
    async with three_services(target, draft) as services:
        yield services


async def responses(
    trio: Trio, asked: messages.GenerateRequest
) -> tuple[list[int], list[messages.GenerationDelta], messages.GenerationStatistics]:
    """Return the prompt's ids, all deltas and the statistics."""
    call = trio.orchestrator.stub.Generate(asked, timeout=PATIENCE)
    answers = [answer async for answer in call]
    prompt = list(answers[0].started.prompt_token_ids)
    deltas = [answer.delta for answer in answers[1:-1]]
    return prompt, deltas, answers[-1].finished.statistics


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (None, None),
        (common.ACCEPTANCE_RULE_REJECTION, common.ROW_FORM_DISTRIBUTIONS),
        (common.ACCEPTANCE_RULE_REJECTION, common.ROW_FORM_LOGITS),
    ],
)
async def test_reports_add_up_to_the_text(
    trio: Trio, temperature: float, rule: int | None, form: int | None
) -> None:
    asked = request(seed=5, temperature=temperature, n_max=4)
    asked.round_detail = CANDIDATES
    if rule is not None and form is not None:
        asked.speculative.acceptance, asked.speculative.row_form = rule, form
    prompt, deltas, statistics = await responses(trio, asked)
    text, texts = list(prompt), target().token_texts()
    reported = [delta.report for delta in deltas if delta.HasField("report")]
    assert [report.round for report in reported] == list(range(1, statistics.round_count + 1))
    for delta in deltas:
        report = delta.report
        accepted = report.accepted_token_count
        assert report.committed_token_count == len(text)
        decided = [token.token_id for token in (*report.draft[:accepted], report.target)]
        assert decided[: len(delta.token_ids)] == list(delta.token_ids)
        for token in (*report.draft, report.target):
            assert token.text == texts[token.token_id]
        if accepted < len(report.draft):
            assert report.draft[accepted].token_id != report.target.token_id or rule is not None
        assert len(report.positions) == accepted + 1
        check_candidates(report, text, asked)
        text += delta.token_ids
    assert sum(len(report.draft) for report in reported) == statistics.drafted_token_count
    ends = [report.draft_end for report in reported]
    assert ends[0] == messages.DRAFT_END_PROMPT
    assert messages.DRAFT_END_LENGTH in ends


def check_candidates(
    report: messages.RoundReport, text: list[int], asked: messages.GenerateRequest
) -> None:
    """Check every p against the target's distribution and every q against the draft's."""
    for i, position in enumerate(report.positions):
        history = [*text, *(token.token_id for token in report.draft[:i])]
        assert listed(position.target) == pytest.approx(expected(target(), history, asked))
        if i < len(report.draft):
            told = listed(position.draft)
            # A row that is sent has integer weights.
            assert told == pytest.approx(expected(draft(), history, asked), abs=1e-3)
        else:
            assert not position.draft


def listed(candidates: list[messages.Candidate]) -> dict[int, float]:
    assert len(candidates) <= ASKED
    chances = [candidate.probability for candidate in candidates]
    assert chances == sorted(chances, reverse=True)
    return {candidate.token.token_id: candidate.probability for candidate in candidates}


def expected(
    model: ToyModel, history: list[int], asked: messages.GenerateRequest
) -> dict[int, float]:
    """Return what the model itself thinks comes next."""
    row = model._logits_after(tuple(history))
    sampling = read_sampling(asked.sampling)
    of_row: Distribution = softmax(row) if sampling.greedy else distribution_of(row, sampling)
    return dict(most_probable(of_row, ASKED))


async def test_under_rejection_nobody_says_what_the_model_would_have_had_accepted(
    trio: Trio,
) -> None:
    rejection = common.ACCEPTANCE_RULE_REJECTION
    for rule in (None, rejection):
        _, _, statistics = await responses(trio, request(seed=5, n_max=4, acceptance=rule))
        [model] = statistics.sources
        assert model.drafted_token_count > 0
        assert model.HasField("agreed_token_count") is (rule is None)


async def test_without_candidates_the_tokens_are_told_alone(trio: Trio) -> None:
    asked = request(seed=5, temperature=0.8, n_max=4)
    asked.round_detail = TOKENS
    _, deltas, _ = await responses(trio, asked)
    assert any(delta.report.draft for delta in deltas)
    assert not any(delta.report.positions for delta in deltas)


async def test_what_is_asked_does_not_change_the_text(trio: Trio) -> None:
    texts = set()
    for detail in (messages.ROUND_DETAIL_UNSPECIFIED, TOKENS, CANDIDATES):
        asked = request(seed=6, temperature=0.8, n_max=4)
        asked.round_detail = detail
        _, deltas, _ = await responses(trio, asked)
        texts.add(tuple(token_id for delta in deltas for token_id in delta.token_ids))
        assert any(delta.HasField("report") for delta in deltas) == bool(detail)
    assert len(texts) == 1


async def test_the_parts_of_the_time_fit_into_it(trio: Trio) -> None:
    _, _, statistics = await responses(trio, request(seed=7, temperature=0.8, n_max=4))

    def seconds(name: str) -> float:
        return float(getattr(statistics, name).ToNanoseconds()) / 1e9

    assert 0 <= seconds("verify_network_duration") <= seconds("verify_wait_duration")
    assert 0 <= seconds("draft_network_duration") <= seconds("draft_wait_duration")
    assert seconds("plain_round_duration") > 0
    for engine in (statistics.target_time, statistics.draft_time):
        prompt, decode = engine.prompt_duration, engine.decode_duration
        assert 0 < prompt.ToNanoseconds() <= decode.ToNanoseconds()
