"""What generations share, through services on real ports: whose it is, and the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.drafters.ngram_file import load_cache
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import (
    Completion,
    Trio,
    eventually,
    generate,
    request,
    three_services,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

LENGTH = 96
SHARED = ["ngram", "past"]


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.8, eos_bias=NEVER)


def asked(salt: str = "") -> messages.GenerateRequest:
    made = request(temperature=0.0, token_limit=LENGTH, drafters=SHARED)
    made.cache_salt = salt
    return made


def counts(completion: Completion) -> dict[str, messages.SourceStatistics]:
    return {each.name: each for each in completion.statistics.sources}


async def settled(trio: Trio) -> None:
    """Wait until what was written is known."""
    texts = trio.orchestrator.orchestrator.texts
    await eventually(lambda: not texts._index())


async def written_three_times(trio: Trio, salt: str = "") -> Completion:
    """Return the last of three equal generations; what n-grams say has to be seen twice."""
    for _ in range(3):
        completion = await generate(trio.orchestrator, asked(salt))
        assert completion.token_ids == written_alone(target(), asked())
        await settled(trio)
    return completion


async def test_what_was_written_before_is_proposed_and_the_text_stays_the_same(
    tmp_path: Path,
) -> None:
    """Whether it is drafted, too, is the controller's choice, by what a decode costs here."""
    options: dict[str, Any] = {"lookup_cache_dynamic": tmp_path / "a", "share_past_texts": 10_000}
    async with three_services(target, draft, pace=0.003, **options) as trio:
        found = counts(await written_three_times(trio))
        for name in SHARED:
            assert found[name].agreed_token_count > LENGTH / 8
            assert found[name].agreed_token_count > 0.8 * found[name].decided_token_count


async def test_what_was_written_is_in_the_file_at_the_end_and_drafted_after_a_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    async with three_services(target, draft, lookup_cache_dynamic=path) as trio:
        await written_three_times(trio)
    assert load_cache(path).pair_count > LENGTH
    async with three_services(target, draft, pace=0.003, lookup_cache_dynamic=path) as trio:
        completion = await generate(trio.orchestrator, asked())
        assert counts(completion)["ngram"].agreed_token_count > LENGTH / 8


async def test_a_text_with_a_salt_is_in_no_file_and_drafted_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a"
    options: dict[str, Any] = {"lookup_cache_dynamic": path, "share_past_texts": 10_000}
    async with three_services(target, draft, pace=0.003, **options) as trio:
        assert "past" not in counts(await written_three_times(trio, "alice"))
        found = counts(await generate(trio.orchestrator, asked("bob")))
        assert found.keys() <= {"ngram"} and not found["ngram"].agreed_token_count
    assert load_cache(path).pair_count == 0
