"""Samplers with a state behind trees: the text is what rounds without a draft write.

On a tiny model, through the target's own verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from outrider.engine.host import EngineHost, HostOptions
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Numerics
from outrider.messages import Answer, Form, LogprobOptions, Round, Rule, SessionParameters, Span
from outrider.sampling import SamplingParameters
from outrider.trees import ROOT, Tree
from target_service.verifier import Verifier
from tests.support.tiny_gguf import Shape, write_model

PROMPT = [0, 70, 71, 72, 90, 91, 92, 70, 71]
COUNT = 24
CASES = {
    "greedy": SamplingParameters(temperature=0.0),
    "penalties": SamplingParameters(repeat_penalty=1.3, presence_penalty=0.5),
    "dry": SamplingParameters(dry_multiplier=0.8, dry_allowed_length=1),
    "grammar": SamplingParameters(grammar="root ::= [a-f]+ [0-9] root | [x-z]"),
    "mirostat": SamplingParameters(mirostat=2),
    "xtc": SamplingParameters(xtc_probability=0.5, xtc_threshold=0.02),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    folder: Path = tmp_path_factory.mktemp("models")
    config = LlamaConfig(
        path=write_model(folder / "tiny.gguf", shape=Shape(layers=2)),
        context=256,
        sequence_count=2,
        thread_count=1,
        pad_multiple=1,
        batch_rows=128,
        pool=True,
        flash_attention=False,
    )
    host = EngineHost(lambda: LlamaModel(config), HostOptions(numerics=Numerics.NATIVE))
    host.start().result(30)
    yield host
    host.stop()


def opening(sampling: SamplingParameters, seed: int) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.SHARED_NOISE,
        sampling=sampling,
        seed=seed,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=100,
        vocabulary=320,
        candidate_count=2,
        logprobs=LogprobOptions(2, after_sampling=True),
        end_token_ids=frozenset([1]),
    )


def write(
    host: EngineHost, sampling: SamplingParameters, seed: int, guess: Callable[[list[int]], Tree]
) -> tuple[list[int], int]:
    """Return a text that is written in rounds, and how many; they are decided by their rows."""
    verifier = Verifier(host._model, opening(sampling, seed))
    text, mu, number = list(PROMPT), None, 0
    answers: list[Answer] = []
    while len(text) < len(PROMPT) + COUNT and text[-1] != 1:
        number += 1
        tree = guess(text)
        round_ = Round(
            number,
            Span(0, text),
            tree.token_ids,
            Form.SAMPLED,
            mirostat_mu=mu,
            parents=tree.parents,
        )

        def job(lease: Any, asked: Round = round_) -> Any:
            return verifier.verify(lease, asked, answers.append)

        host.submit(bytes(16), job, text).future.result(30)
        answer = answers.pop()
        rows, walk = answer.rows, tree.walk(answer.rows.sampled)
        assert len(rows.candidates) == len(rows.logprobs) == len(tree) + 1
        mu = rows.mirostat_mus[(walk.nodes or [ROOT])[-1] + 1] if rows.mirostat_mus else None
        text = [*text, *tree.tokens(walk.nodes), walk.next_token_id]
        if 1 in text:
            text = text[: text.index(1) + 1]  # the end, whatever follows
    return text[: len(PROMPT) + COUNT], number


@pytest.mark.parametrize("name", CASES)
def test_a_state_follows_the_branch_that_is_taken(host: EngineHost, name: str) -> None:
    sampling = CASES[name]
    for seed in range(3):
        alone, _ = write(host, sampling, seed, lambda _: Tree((), ()))
        dice = Random(seed)

        def guess(text: list[int], alone: list[int] = alone, dice: Random = dice) -> Tree:
            tokens, parents, way = list[int](), list[int](), ROOT
            for token_id in alone[len(text) :][: dice.randrange(6)]:
                both = [token_id, (token_id + dice.randrange(1, 300)) % 320]
                dice.shuffle(both)
                tokens, parents = [*tokens, *both], [*parents, way, way]
                way = len(tokens) - 2 + both.index(token_id)
            return Tree.checked(tokens, parents)

        text, rounds = write(host, sampling, seed, guess)
        assert text == alone and rounds < 0.7 * (len(alone) - len(PROMPT)) + 3
