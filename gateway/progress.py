"""What streams report on request while they last, as llama-server does. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.body_fields import StreamedFields
from gateway.usage import timings
from outrider.response import Event, Started, Statistics


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

    @property
    def needs_statistics(self) -> bool:
        """Whether what it reports comes with running statistics."""
        return self.reports_timings or self.reports_prompts

    def timings(self, event: Event) -> dict[str, Any]:
        """Return what goes into every chunk that an event becomes."""
        statistics = _statistics(event)
        return {"timings": timings(statistics)} if self.reports_timings and statistics else {}

    def prompt(self, number: int, event: Event) -> dict[str, Any]:
        """Return what goes into a chunk of its own before all others that an event becomes."""
        if not self.reports_prompts:
            return {}
        if isinstance(event, Started):
            self._being_read.add(number)
            count, cached = len(event.prompt_token_ids), event.cached_token_count
            return _prompt_progress(count, cached, cached, 0)
        statistics = _statistics(event)
        if number not in self._being_read or statistics is None:
            return {}
        self._being_read.remove(number)
        count, taken = statistics.prompt_token_count, int(1e3 * statistics.prompt_seconds)
        return _prompt_progress(count, statistics.cached_token_count, count, taken)


def _statistics(event: Event) -> Statistics | None:
    return None if isinstance(event, Started) else event.statistics


def _prompt_progress(total: int, cached: int, processed: int, taken: int) -> dict[str, Any]:
    counts = {"total": total, "cache": cached, "processed": processed, "time_ms": taken}
    return {"prompt_progress": counts}
