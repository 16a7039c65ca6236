"""What is cached for one caller is neither shown nor lent to another, at either model."""

from __future__ import annotations

import pytest

from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import PATIENCE, Trio, generate, request, three_services, toy
from tests.support.toy import NEVER, ToyModel

SECRET = "a prompt with a password in it, of some length"


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER, sequence_count=8)


def drafter() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.9, eos_bias=NEVER, sequence_count=8)


async def counted(trio: Trio, salt: str) -> tuple[int, int]:
    """Return the tokens of the prompt that a job is said to find, and those it does find."""
    asked = request(SECRET, token_limit=4)
    asked.cache_salt = salt
    submission = messages.SubmitGenerationRequest(request=asked)
    submitted = await trio.orchestrator.stub.SubmitGeneration(submission, timeout=PATIENCE)
    job_id = submitted.job_id
    cancel = messages.CancelGenerationRequest(job_id=job_id)
    await trio.orchestrator.stub.CancelGeneration(cancel, timeout=PATIENCE)
    found = (await generate(trio.orchestrator, asked)).statistics.cached_token_count
    return submitted.started.cached_token_count, found


@pytest.mark.fault(
    "others",
    "a caller reads another one's prompt off the service, token by token",
    before="five characters of a secret in 90 seconds, by the count of cached tokens",
    now="a salt of its own separates every caller's cached prefixes from the others'",
)
async def test_a_prompt_is_cached_for_its_own_salt_alone() -> None:
    async with three_services(target, drafter) as trio:
        first = request(SECRET, token_limit=4)
        first.cache_salt = "alice"
        await generate(trio.orchestrator, first)
        assert (await counted(trio, "bob"))[0] == 0
        assert (await counted(trio, ""))[0] == 0
        told, found = await counted(trio, "alice")
        assert told >= 16 and found >= 16


async def test_a_prompt_is_read_anew_where_the_cache_is_ignored() -> None:
    async with three_services(target, drafter) as trio:
        asked = request(SECRET, token_limit=4)
        asked.ignore_cached_prefix = True
        for _ in range(2):
            found = (await generate(trio.orchestrator, asked)).statistics.cached_token_count
            assert found == 0
        # Nor is it there for a request that does not ignore it.
        assert (await counted(trio, ""))[0] == 0
