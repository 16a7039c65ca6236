"""What streams report on request while they last, as llama-server does. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.body_fields import StreamedFields
from gateway.usage import milliseconds, timings
from outrider.v1 import orchestrator_service_pb2 as messages


@dataclass(slots=True)
class StreamProgress:
    """The timings so far, for every chunk, and how far prompts are read: before, and after."""

    reports_timings: bool = False
    reports_prompts: bool = False
    _being_read: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, fields: StreamedFields) -> StreamProgress:
        """Return what a request asks for."""
        streams = bool(fields.stream)
        return cls(
            streams and bool(fields.timings_per_token), streams and bool(fields.return_progress)
        )

    def ask(self, request: messages.GenerateRequest) -> None:
        """Ask for what there is to report."""
        request.running_statistics = self.reports_timings or self.reports_prompts

    def timings(self, response: messages.GenerateResponse) -> dict[str, Any]:
        """Return what goes into every chunk that a message becomes."""
        statistics = _statistics(response)
        return {"timings": timings(statistics)} if self.reports_timings and statistics else {}

    def prompt(self, number: int, response: messages.GenerateResponse) -> dict[str, Any]:
        """Return what goes into a chunk of its own before all others that a message becomes."""
        if not self.reports_prompts:
            return {}
        if response.WhichOneof("event") == "started":
            self._being_read.add(number)
            started = response.started
            count, cached = len(started.prompt_token_ids), started.cached_token_count
            return _prompt_progress(count, cached, cached, 0)
        statistics = _statistics(response)
        if number not in self._being_read or statistics is None:
            return {}
        self._being_read.remove(number)
        count, seconds = statistics.prompt_token_count, statistics.prompt_duration
        taken = int(milliseconds(seconds))
        return _prompt_progress(count, statistics.cached_token_count, count, taken)


def _statistics(response: messages.GenerateResponse) -> messages.GenerationStatistics | None:
    if response.WhichOneof("event") == "finished":
        return response.finished.statistics
    return response.delta.statistics if response.delta.HasField("statistics") else None


def _prompt_progress(total: int, cached: int, processed: int, taken: int) -> dict[str, Any]:
    counts = {"total": total, "cache": cached, "processed": processed, "time_ms": taken}
    return {"prompt_progress": counts}
