"""A target judges what it drafted under rejection as an orchestrator would, whatever samples it.

On a tiny model with its MTP head, through the target's own verifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.core.acceptance import DraftToken, block_verification, match
from outrider.engine.guesser import guesser
from outrider.engine.head_draft import HeadDraft
from outrider.messages import (
    Form,
    LogprobOptions,
    OwnDraftOrder,
    Round,
    Rule,
    SessionParameters,
    Span,
)
from outrider.noise import Purpose, uniform
from outrider.sampling import SamplingParameters
from tests.engine.test_head_draft import PROMPT, load, opening
from tests.engine.test_tree_sampling import CASES
from tests.support.one_session import OneSession
from tests.support.tiny_heads import write_mtp

COUNT, DROPPED = 60, Span(4, [9, 10, 11])
SAMPLERS = {name: CASES[name] for name in ("greedy", "penalties", "dry", "xtc")} | {
    "grammar": SamplingParameters(grammar="root ::= [a-z0-9 ]+ | [A-Z] root")
}
"""Mirostat does not go with the rule."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneSession]:
    folder: Path = tmp_path_factory.mktemp("heads")
    model = load(write_mtp(folder / "m.gguf", "glm4moe"))
    draft = HeadDraft(model.open_head(), model)
    yield OneSession(model, draft)
    draft.close()
    model.close()


@pytest.mark.parametrize("name", SAMPLERS)
def test_its_answers_are_what_the_rows_and_the_noise_of_the_request_say(
    target: OneSession, name: str
) -> None:
    parameters = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.REJECTION,
        sampling=SAMPLERS[name],
        seed=3,
        choice=2,
        prompt_count=len(PROMPT) + len(DROPPED.token_ids),
        token_limit=COUNT,
        vocabulary=320,
        candidate_count=2,
        logprobs=LogprobOptions(2, after_sampling=True),
        dropped=DROPPED,
    )
    order = OwnDraftOrder(3)
    target.begin(parameters)
    target.write(Round(1, Span(0, PROMPT), (), Form.SAMPLED, continue_count=40, own_draft=order))
    drafts = [guesses for guesses in target.guesses if guesses]
    text, beside, counts = list(PROMPT), OneSession(target.model), list[int]()
    answers = list(target.answers)
    beside.begin(parameters)  # takes the target's sequence
    for number, answer in enumerate(answers, 1):
        [(own, rows)] = answer.decodes
        asked = Round(number, Span(0, list(text)), own.token_ids, Form.DISTRIBUTIONS)
        beside.write(asked)
        said, first = beside.answers[-1].rows, len(text) + len(DROPPED.token_ids)
        if own.token_ids:
            guesses = drafts.pop(0)
            assert own.token_ids == [guess.token_id for guess in guesses]

            def coin(purpose: Purpose, index: int, first: int = first) -> float:
                return uniform(parameters.seed, parameters.choice, purpose, first, first + index)

            tokens = [DraftToken(guess.token_id, guess.row) for guess in guesses]
            verdict = block_verification(tokens, said.distributions, coin)
            assert match(own.token_ids, rows.sampled) == verdict
            counts.append(verdict.accepted_count)
            added = [*own.token_ids[: verdict.accepted_count], verdict.next_token_id]
        else:
            added = [said.distributions[0].race(parameters.seed, parameters.choice, first)[0]]
        for i, token_id in enumerate(added):
            assert rows.sampled[i] == token_id and rows.candidates[i] == said.candidates[i]
            assert dict(rows.logprobs[i])[token_id] == dict(said.logprobs[i])[token_id]
            assert len(rows.logprobs[i]) <= 3
        text += added
    assert len(text) >= len(PROMPT) + 40 and not drafts
    assert min(counts) < 3 and max(counts) > 0


def test_nothing_is_drawn_from_a_row_without_numbers(target: OneSession) -> None:
    guess = guesser(target.model, opening(Rule.REJECTION, SAMPLERS["xtc"]), None, 0.0)
    with pytest.raises(ValueError):
        guess(np.full(320, np.nan, np.float32), len(PROMPT), PROMPT)
