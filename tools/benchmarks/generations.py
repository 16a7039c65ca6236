"""Runs generations in the benchmark's own process, as an orchestrator would."""

from __future__ import annotations

import secrets
import time

from orchestrator.driver import Driver
from orchestrator.pool import Pool
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.speculate import control
from outrider.messages import Form, Rule, SessionParameters
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy, Speculation
from outrider.v1 import target_service_pb2

PROMPTS = (
    "def main(argv=None):\n    parser = argparse.ArgumentParser(",
    "class Queue:\n    def __init__(self, maxsize=0):\n",
    "import os\nimport sys\n\ndef walk(top, topdown=True):\n",
    "    def test_read(self):\n        with open(self.filename) as f:\n",
)


async def make_generation(
    pair: Pool,
    prompt: str,
    *,
    sampling: SamplingParameters,
    draft_length: int,
    token_limit: int,
    seed: int,
) -> Generation:
    """Return a generation of a prompt, not yet driven."""
    request = target_service_pb2.TokenizeRequest(texts=[prompt], add_special=True)
    ids = list((await pair.target.stub.Tokenize(request)).texts[0].token_ids)
    assert pair.target.model is not None
    rule = Rule.MATCH if sampling.greedy else Rule.SHARED_NOISE
    speculation = Speculation(n_max=draft_length, policy=Policy.FIXED, run_ahead=False)
    opening = SessionParameters(
        session_id=secrets.token_bytes(16),
        attempt=0,
        rule=rule,
        sampling=sampling,
        seed=seed,
        choice=0,
        prompt_count=len(ids),
        token_limit=token_limit,
        vocabulary=pair.target.model.vocabulary.token_count,
    )
    return Generation(
        Plan(
            opening=opening,
            prompt=ids,
            control=control(speculation, rule, pair.pair, timeout=5.0),
            form=Form.SAMPLED,
            rollback_calls=False,
            target_context=pair.target.model.context_token_count,
        )
    )


class TimedDriver(Driver):
    """A driver that notes what each round spent outside the models."""

    def __init__(self, generation: Generation, pair: Pool) -> None:
        super().__init__(generation, pair, deadline=time.monotonic() + 300.0)
        self.overheads: list[float] = []
        self._before = 0.0
        self._spent = 0.0  # in the models, up to then

    def _read_target(self, message: target_service_pb2.VerifyResponse) -> None:
        now = time.perf_counter()
        super()._read_target(message)
        spent = sum(each.decode + each.sample for each in (self.timings.target, self.timings.draft))
        if self._before:
            self.overheads.append(now - self._before - (spent - self._spent))
        self._before, self._spent = now, spent


async def drive(driver: Driver) -> None:
    """Run a generation to its end."""
    async for _ in driver.run():
        pass
