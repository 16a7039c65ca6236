"""Counts what generations bring, for Prometheus, under names that other servers share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import fields
from itertools import accumulate

from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import outrider
from outrider.core.round_times import BUCKET_LIMITS, Durations, RoundTimes
from outrider.descriptions import translation_level
from outrider.errors import OutriderError
from outrider.messages import FinishReason
from outrider.response import Delta, Event, Finished, SourceStatistics, Started, Statistics
from outrider.v1 import orchestrator_service_pb2 as messages

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SPEC_DECODE = (
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens"),
    *("spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos"),
)
OTHER_NAMES = {
    "vllm": {
        **{name: name for name in _SPEC_DECODE},
        "running_requests": "num_requests_running",
        "prompt_tokens": "prompt_tokens",
        "generated_tokens": "generation_tokens",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "inter_token_latency_seconds": "inter_token_latency_seconds",
        "request_seconds": "e2e_request_latency_seconds",
    },
    "llamacpp": {
        **{name: name for name in _SPEC_DECODE},
        "running_requests": "requests_processing",
        "prompt_tokens": "prompt_tokens",
        "prompt_seconds": "prompt_seconds",
        "generated_tokens": "tokens_predicted",
        "generation_seconds": "tokens_predicted_seconds",
    },
}
"""What other servers call our metrics, without `outrider_`."""

_SLOW = (*BUCKET_LIMITS[4:], 25.0, 60.0, 120.0, 300.0, 600.0)

_OF_SOURCES = {
    "draft_tokens": "Draft tokens verified, by who proposed them.",
    "accepted_tokens": "Draft tokens accepted, by who proposed them.",
    "decided_tokens": "Tokens proposed, drafted or not, and compared with the text.",
    "agreed_tokens": "Of these, those that agree: what a source would have had accepted.",
    "seconds": "Time that a source of draft tokens took.",
}

_MISSES = (
    "Wrong tokens of drafts that wrote runner-up lines; foreseen: the text continued with one."
)
_RUNNER_UP_SECONDS = "Decodes of drafts for runner-up lines alone."

_OUTCOMES = {
    FinishReason.END_OF_TEXT: "end_of_text",
    FinishReason.TOKEN_LIMIT: "token_limit",
    FinishReason.STOP_SEQUENCE: "stop_sequence",
    FinishReason.CONTEXT_FULL: "context_full",
}


class Metrics:
    """The metrics of one orchestrator. `compatible_with` adds the names of these other servers.

    `status` is asked for the drafts whenever the metrics are. `watch` observes every generation of
    the orchestrator. Of one that does not finish the tokens are counted, and its drafts are not.
    """

    def __init__(
        self,
        status: Callable[[], messages.GetStatusResponse],
        compatible_with: Iterable[str] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"outrider_{name}", text, labels, buckets=buckets, registry=registry)

        self._requests = counter("requests", "Generations that ended.", "outcome")
        self._running = Gauge(
            "outrider_running_requests", "Generations in flight.", registry=registry
        )
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = counter("cached_prompt_tokens", "Tokens of prompts found in a cache.")
        self._generated_tokens = counter("generated_tokens", "Tokens generated.")
        self._tokens_from = counter("tokens_by_origin", "Tokens generated, by origin.", "origin")
        self._prompt_seconds = counter("prompt_seconds", "ServiceTime on prompts.")
        self._generation_seconds = counter("generation_seconds", "From first tokens to last.")
        self._drafts = counter("spec_decode_num_drafts", "Rounds that carried a draft.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their index in the draft.",
            "position",
        )
        self._of_sources = {
            name: counter(f"source_{name}", text, "source") for name, text in _OF_SOURCES.items()
        }
        self._misses = counter("draft_misses", _MISSES, "foreseen")
        self._runner_up_seconds = counter("runner_up_seconds", _RUNNER_UP_SECONDS)
        self._steps = counter("steps", "Decodes that gave rows, by the model's role.", "role")
        self._rounds = counter("rounds", "Verify rounds answered.")
        self._phase_seconds = counter("phase_seconds", "Time of rounds by phase.", "phase")
        self._round_times = RoundTimes()
        registry.register(_RoundSeconds(self._round_times))
        registry.register(_Drafts(status))
        registry.register(_Targets(status))
        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to the first token.", _SLOW
        )
        self._between_tokens = histogram(
            "inter_token_latency_seconds",
            "Between tokens, a round's time shared evenly.",
            BUCKET_LIMITS,
        )
        self._request_seconds = histogram("request_seconds", "From request to end.", _SLOW)
        build = Gauge("outrider_build_info", "Always 1.", ["version"], registry=registry)
        build.labels(outrider.__version__).set(1)
        for server in compatible_with:
            registry.register(_Renamed(registry, server))

    async def watch(
        self, events: AsyncGenerator[Event], completion_count: int = 1
    ) -> AsyncGenerator[Event]:
        """Yield the events of a generation, and count what they report."""
        begin = self._clock()
        last: dict[int, float] = {}
        outcome, left = "cancelled", completion_count
        self._running.inc()
        try:
            async with aclosing(events):
                async for event in events:
                    self._count(event, begin, last)
                    if isinstance(event, Finished):
                        left -= 1
                        outcome = _OUTCOMES.get(event.reason, "unknown")
                    yield event
        except OutriderError as error:
            outcome = error.reason.lower()
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            self._running.dec()
            self._requests.labels("cancelled" if left and outcome in _ENDS else outcome).inc()
            self._request_seconds.observe(self._clock() - begin)

    def _count(self, event: Event, begin: float, last: dict[int, float]) -> None:
        match event:
            case Started():
                self._prompt_tokens.inc(len(event.prompt_token_ids))
            case Delta():
                if event.token_ids:
                    self._count_tokens(event, begin, last)
            case Finished():
                self._count_rounds(event.statistics)
                if event.choice == 0:  # the others find in the cache what it has read
                    self._cached_tokens.inc(max(0, event.statistics.cached_token_count))

    def _count_tokens(self, delta: Delta, begin: float, last: dict[int, float]) -> None:
        now = self._clock()
        self._generated_tokens.inc(len(delta.token_ids))
        for origin in delta.origins:
            self._tokens_from.labels(origin.value).inc()
        if delta.choice not in last:
            self._first_token.observe(now - begin)
        else:
            pace = (now - last[delta.choice]) / len(delta.token_ids)
            for _ in delta.token_ids:
                self._between_tokens.observe(pace)
        last[delta.choice] = now

    def _count_rounds(self, numbers: Statistics) -> None:
        self._drafts.inc(numbers.drafted_round_count)
        self._draft_tokens.inc(numbers.drafted_token_count)
        self._accepted.inc(numbers.accepted_token_count)
        for position, count in enumerate(numbers.accepted_by_position):
            self._accepted_at.labels(str(position)).inc(count)
        self._rounds.inc(numbers.round_count)
        self._prompt_seconds.inc(max(0.0, numbers.prompt_seconds))
        self._generation_seconds.inc(max(0.0, numbers.generation_seconds))
        for phase, seconds in _phases(numbers):
            self._phase_seconds.labels(phase).inc(seconds)
        for role, engine in (("target", numbers.target_time), ("draft", numbers.draft_time)):
            if engine.step_count is not None:
                self._steps.labels(role).inc(max(0, engine.step_count))
        foreseen, misses = numbers.foreseen_miss_count, numbers.forked_miss_count
        self._misses.labels("true").inc(foreseen)
        self._misses.labels("false").inc(max(0, misses - foreseen))
        self._runner_up_seconds.inc(numbers.draft_time.runner_up_seconds)
        for source in numbers.sources:
            for name, amount in _reported(source):
                self._of_sources[name].labels(source.name).inc(amount)

    def note_rounds(self, times: RoundTimes) -> None:
        """Count the rounds of a completion."""
        self._round_times.add(times)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


_ENDS = frozenset({*_OUTCOMES.values(), "unknown"})


def _phases(numbers: Statistics) -> Iterator[tuple[str, float]]:
    yield "draft", max(0.0, numbers.draft_wait_seconds)
    yield "verify", max(0.0, numbers.verify_wait_seconds)
    yield "network", max(0.0, numbers.network_seconds)
    yield "queue", numbers.target_time.queue_seconds
    yield "decode", numbers.target_time.decode_seconds
    yield "sample", numbers.target_time.sample_seconds


def _reported(source: SourceStatistics) -> Iterator[tuple[str, float]]:
    """Yield what a source did; what is not reported of it gets no sample, rather than a 0."""
    yield "draft_tokens", source.drafted_token_count
    yield "accepted_tokens", source.accepted_token_count
    reported = {
        "decided_tokens": source.decided_token_count,
        "agreed_tokens": source.agreed_token_count,
        "seconds": source.seconds,
    }
    yield from ((name, amount) for name, amount in reported.items() if amount is not None)


def _seconds(duration: Duration) -> float:
    return max(0.0, duration.seconds + duration.nanos / 1e9)


class _RoundSeconds(Collector):
    """The rounds by phase, as a histogram."""

    def __init__(self, times: RoundTimes) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(
            "outrider_round_seconds", "Rounds of finished generations by phase.", labels=["phase"]
        )
        for phase in fields(self._times):
            times: Durations = getattr(self._times, phase.name)
            counts = accumulate(times.counts)
            bounds = [*map(str, BUCKET_LIMITS), "+Inf"]
            buckets = list(zip(bounds, counts, strict=True))
            family.add_metric([phase.name], buckets, times.seconds)
        yield family


class _OfStatus(Collector):
    """What the status says at the time."""

    def __init__(self, status: Callable[[], messages.GetStatusResponse]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks for no status."""
        return ()


class _Drafts(_OfStatus):
    """Whether each draft is used, and what those are like that are."""

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        labels = ("address", "model", "joined")
        generations = GaugeMetricFamily(
            "outrider_draft_generations", "Generations that a draft drafts for.", labels=labels
        )
        rates = GaugeMetricFamily(
            "outrider_draft_tokens_per_second", "Of a draft's own time.", labels=labels
        )
        trips = GaugeMetricFamily(
            "outrider_draft_round_trip_seconds", "Of a small call to a draft.", labels=labels
        )
        levels = GaugeMetricFamily(
            "outrider_draft_level",
            "1, by how its ids become the target's: native, or translated by token or string.",
            labels=(*labels, "level"),
        )
        used = GaugeMetricFamily(
            "outrider_draft_used",
            "1 where generations may lease a draft that is configured or joined, else 0.",
            labels=("address", "joined"),
        )
        refused = GaugeMetricFamily(
            "outrider_drafts_refused", "Drafts that dialled in and were sent away lately."
        )
        status = self._status()
        refused.add_metric((), len(status.refused_drafts))
        for peer in status.peers:
            if peer.role != "draft":
                continue
            is_used, joined = peer.state == messages.PEER_STATE_READY, str(peer.joined).lower()
            used.add_metric((peer.address, joined), is_used)
            if is_used:
                values = (peer.address, peer.model.model_name, joined)
                generations.add_metric(values, peer.generation_count)
                rates.add_metric(values, peer.tokens_per_second)
                trips.add_metric(values, _seconds(peer.round_trip_duration))
                levels.add_metric((*values, translation_level(peer)), 1)
        yield from (used, generations, rates, trips, levels, refused)


class _Targets(_OfStatus):
    """Whether each target writes, how much, and how its engine spends its time."""

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, and the counters of those that are ready, a few seconds old at most."""
        labels = ("address",)
        used = GaugeMetricFamily(
            "outrider_target_used", "1 where new texts may be written, else 0.", labels=labels
        )
        generations = GaugeMetricFamily(
            "outrider_target_generations", "Generations at a target.", labels=labels
        )
        trips = GaugeMetricFamily(
            "outrider_target_round_trip_seconds", "Of a small call to a target.", labels=labels
        )
        sessions = GaugeMetricFamily(
            "outrider_target_sessions",
            "Sessions that a target has room for.",
            labels=labels,
        )
        open_sessions = GaugeMetricFamily(
            "outrider_target_open_sessions",
            "Of these, those with an open stream.",
            labels=labels,
        )
        open_time = CounterMetricFamily(
            "outrider_target_open_seconds", "In which a target had an open stream.", labels=labels
        )
        decode_time = CounterMetricFamily(
            "outrider_target_decode_seconds", "Of these, inside decodes.", labels=labels
        )
        for peer in self._status().peers:
            if peer.role != "target":
                continue
            is_used, values = peer.state == messages.PEER_STATE_READY, (peer.address,)
            used.add_metric(values, is_used)
            generations.add_metric(values, peer.generation_count)
            if is_used:
                activity = peer.model.activity
                trips.add_metric(values, _seconds(peer.round_trip_duration))
                sessions.add_metric(values, peer.model.session_count)
                open_sessions.add_metric(values, activity.open_session_count)
                open_time.add_metric(values, _seconds(activity.open_duration))
                decode_time.add_metric(values, _seconds(activity.decode_duration))
        yield from (used, generations, trips, sessions, open_sessions, open_time, decode_time)


class _Renamed(Collector):
    """Our metrics once more, under another server's names."""

    def __init__(self, registry: CollectorRegistry, server: str) -> None:
        self._registry = registry
        self._server = server
        self._is_collecting = False

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the renamed metrics."""
        if self._is_collecting:
            return
        self._is_collecting = True
        try:
            yield from renamed(list(self._registry.collect()), self._server)
        finally:
            self._is_collecting = False


def renamed(metrics: Iterable[Metric], server: str) -> Iterator[Metric]:
    """Yield those metrics that another server has too, under its names."""
    names = {f"outrider_{ours}": f"{server}:{its}" for ours, its in OTHER_NAMES[server].items()}
    for metric in metrics:
        if metric.name not in names:
            continue
        copy = Metric(names[metric.name], metric.documentation, metric.type)
        for sample in metric.samples:
            copy.add_sample(
                names[metric.name] + sample.name.removeprefix(metric.name),
                sample.labels,
                sample.value,
            )
        yield copy
