"""What a generation took, in the shapes that clients of other servers read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.body_fields import StreamedFields
from outrider.response import Event, Started, Statistics


def usage(
    prompts: Sequence[Started],
    completions: Sequence[Statistics],
    *,
    is_predicted: bool = False,
) -> dict[str, Any]:
    """Return OpenAI's usage; a prompt counts once, however many completions it has.

    What was cached of it its first completion says: the others find what that one has read.
    Prediction tokens are those of the caller's prediction where one was sent (`is_predicted`), none
    if nobody drafted from it; else all that were drafted.
    """
    first_ones = completions[:: max(1, len(completions) // max(1, len(prompts)))]
    prompt_count = sum(len(prompt.prompt_token_ids) for prompt in prompts)
    count = sum(each.generated_token_count for each in completions)
    accepted = sum(each.accepted_prediction_token_count for each in completions)
    rejected = sum(each.rejected_prediction_token_count for each in completions)
    if not is_predicted:
        accepted = sum(each.accepted_token_count for each in completions)
        rejected = sum(each.drafted_token_count for each in completions) - accepted
    return {
        "prompt_tokens": prompt_count,
        "completion_tokens": count,
        "total_tokens": prompt_count + count,
        "prompt_tokens_details": {
            "cached_tokens": sum(each.cached_token_count for each in first_ones)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def timings(statistics: Statistics) -> dict[str, Any]:
    """Return llama-server's timings; what was drafted is in them if anything was."""
    cached, count = statistics.cached_token_count, statistics.generated_token_count
    read = statistics.prompt_token_count - cached
    shape: dict[str, Any] = {
        "cache_n": cached,
        "prompt_n": read,
        **_speed("prompt", read, 1e3 * statistics.prompt_seconds),
        "predicted_n": count,
        # The time begins with the first token, which it is therefore not the time of.
        **_speed("predicted", max(0, count - 1), 1e3 * statistics.generation_seconds),
    }
    if statistics.drafted_token_count:
        shape["draft_n"] = statistics.drafted_token_count
        shape["draft_n_accepted"] = statistics.accepted_token_count
    return shape


def _speed(what: str, count: int, taken: float) -> dict[str, Any]:
    return {
        f"{what}_ms": taken,
        f"{what}_per_token_ms": taken / count if count else 0.0,
        f"{what}_per_second": 1e3 * count / taken if taken else 0.0,
    }


def acceptance_metrics(statistics: Statistics) -> dict[str, Any]:
    """Return vLLM's per-request metrics of acceptance, as detailed as it reports them."""
    steps, drafted = statistics.drafted_round_count, statistics.drafted_token_count
    accepted = statistics.accepted_token_count
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": acceptance_histogram(statistics),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": len(statistics.drafted_by_position),
            "per_step_accepted": list(statistics.accepted_by_round),
            "per_step_drafted": list(statistics.drafted_by_round),
        }
    }


def reports(statistics: Statistics) -> dict[str, Any]:
    """Return how speculation went, as llama-server and vLLM report it."""
    return {"timings": timings(statistics), "metrics": acceptance_metrics(statistics)}


def acceptance_histogram(statistics: Statistics) -> list[int]:
    """Return in how many rounds with a draft exactly 0, 1, 2 ... of its tokens were accepted."""
    # Tokens are accepted from the first on, so those that got to i are those that passed i - 1.
    length = len(statistics.drafted_by_position)
    reached = [statistics.drafted_round_count, *statistics.accepted_by_position]
    reached += [0] * (length + 2 - len(reached))
    return [reached[i] - reached[i + 1] for i in range(length + 1)]


# --- so far ---


@dataclass(slots=True)
class StreamProgress:
    """What streams report on request while they last, as llama-server does.

    That are the timings so far, for every chunk, and how far prompts are read: before, and after.
    """

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
