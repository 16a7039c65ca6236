"""The client against a real orchestrator that goes away and comes back."""

from __future__ import annotations

import pytest

from outrider.client import CallFailed, OutriderClient
from tests.support.services import TARGET, ModelProcess, OrchestratorProcess, running, toy


async def test_the_first_call_after_a_return_succeeds() -> None:
    async with running(ModelProcess(TARGET, toy)) as target:
        orchestrator = OrchestratorProcess(target.address)
        await orchestrator.start()
        async with OutriderClient(orchestrator.address) as client:
            assert (await client.status()).peers
            await orchestrator.close()
            for _ in range(2):  # each makes the pause between two attempts longer
                with pytest.raises(CallFailed, match="no orchestrator answers"):
                    await client.status()
            await orchestrator.start()
            try:
                assert (await client.status()).peers
            finally:
                await orchestrator.close()
