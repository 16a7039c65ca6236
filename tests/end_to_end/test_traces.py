"""Traces of real processes over the bundled pair, as a collector receives them."""

from __future__ import annotations

import signal

from tests.support.collector import Collector, Seen, collecting, explained
from tests.support.commands import GREEDY, Command, until

FAST = ("--threads", "1", "--draft-threads", "1", "--n-draft", "4", "--no-own-draft")


ALL = {"outrider-orchestrator", "outrider-target", "outrider-draft"}
SESSIONS = {"outrider.v1.TargetService/Verify", "outrider.v1.DraftService/Draft"}


def newest(collector: Collector) -> list[Seen]:
    """Return what came of the newest trace whose generation came."""
    generations = collector.named("generation")
    return [s for s in collector.spans if generations and s.trace_id == generations[-1].trace_id]


def test_three_processes_write_one_trace_that_explains_the_time() -> None:
    with collecting("grpc") as collector:
        words = ("--listen", "127.0.0.1:0", *FAST, f"--traces={collector.endpoint}")
        up = Command("up", *words, env={"OTEL_BSP_SCHEDULE_DELAY": "100"})
        try:
            address = up.wait_for_line("orchestrator ").split()[1]
            shares: list[float] = []

            def is_explained() -> bool:
                # On a machine that does something else meanwhile, one text shows nothing.
                count = len(collector.named("generation"))
                told = ("--orchestrator", address, *GREEDY, "-n", "128", "--json")
                Command("generate", *told).finish().json  # noqa: B018 - it asserts
                until(lambda: len(collector.named("generation")) > count)
                until(lambda: {span.name for span in newest(collector)} >= SESSIONS)
                shares.append(explained(collector, collector.named("generation")[-1]))
                return shares[-1] >= 0.95

            until(is_explained, 90.0)
            print(f"explained: {[round(share, 4) for share in shares]}")
            up.process.send_signal(signal.SIGINT)
            up.finish()
        finally:
            up.kill_all()
    assert {span.service for span in newest(collector)} == ALL
