"""What GetStatus says of generations: those in flight, and all that was written."""

from __future__ import annotations

import asyncio

from tests.support.services import Gate, eventually, generate, request, three_services, toy


async def test_a_generation_is_shown_while_it_is_written_and_its_tokens_afterwards() -> None:
    async with three_services(toy, lambda: toy(seed=9, agreement=0.7)) as trio:
        gate = Gate(trio.target.model, passes=2)
        writing = asyncio.create_task(generate(trio.orchestrator, request(), timeout=60.0))
        await gate.reached()
        [shown] = (await trio.orchestrator.status()).generations
        assert shown.speculates
        assert shown.age_duration.ToMicroseconds() > 0
        await gate.open()
        done = await writing
        assert shown.prompt_token_count == len(done.prompt)
        assert shown.token_count <= len(done.token_ids)
        await eventually(lambda: not trio.orchestrator.orchestrator.in_flight())
        status = await trio.orchestrator.status()
        assert not status.generations
        assert status.generated_token_count == len(done.token_ids)
