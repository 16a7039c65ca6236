"""What is said of a finished generation: the statistics under its text, and all of it as JSON.

Colour never says anything alone: the statistics name and count every origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from outrider.client import (
    EngineTime,
    ModelInfo,
    Origin,
    PeerStatus,
    SourceStatistics,
    Statistics,
    Status,
)
from outrider_cli.phrases import plural
from outrider_cli.render import FAINT, STYLES, Line, Transcript, Words, source_style
from outrider_cli.verdict import estimate, sentence

_NOTHING = "n/a"
_LEAST_TOKENS = 16
"""Of a text that says whether drafts pay: with 6 tokens two pairs of models made .32 to 1.24 times
what they made without drafts, the quicker of them less than half in three of five texts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second of one text with and without drafts, measured by turns; none is empty."""

    with_drafts: tuple[float, ...]
    without: tuple[float, ...]  # each right before or after the one in `with_drafts`
    drafted: bool  # whether any was drafted
    same_text: bool

    @classmethod
    def of(cls, pairs: Sequence[tuple[Transcript, Transcript]]) -> Comparison | None:
        """Return it by texts with drafts, each with the one without; None where one has no rate."""
        rates = [[_rate(each) for each in pair] for pair in pairs]
        if not all(fast and slow for fast, slow in rates):
            return None
        return cls(
            with_drafts=tuple(fast for fast, _ in rates),
            without=tuple(slow for _, slow in rates),
            drafted=any(_drafted_count(drafted) for drafted, _ in pairs),
            same_text=all(drafted.token_ids == alone.token_ids for drafted, alone in pairs),
        )

    @property
    def ratios(self) -> list[float]:
        """How many times as fast each was with drafts."""
        return [fast / slow for fast, slow in zip(self.with_drafts, self.without, strict=True)]

    @property
    def verdict(self) -> str:
        """Whether drafts pay, by the median; of several pairs, with its 95 % interval."""
        from outrider_cli.intervals import median_of

        found = median_of(self.ratios)
        assert found is not None
        is_one = len(self.without) == 1
        low, high = (None, None) if is_one else (found.low, found.high)
        return sentence(found.value, low, high, self.drafted)


def _rate(transcript: Transcript) -> float:
    assert transcript.finished is not None
    return transcript.finished.statistics.tokens_per_second or 0.0


def _drafted_count(transcript: Transcript) -> int:
    assert transcript.finished is not None
    return transcript.finished.statistics.drafted_token_count


# --- statistics ---


def statistics_lines(
    transcript: Transcript, status: Status, comparison: Comparison | None = None
) -> list[Line]:
    """Return the statistics of a finished generation in few lines, a label before each."""
    assert transcript.started is not None and transcript.finished is not None
    numbers, seed = transcript.finished.statistics, transcript.started.seed
    return [
        _short("prompt", Words(_prompt_briefly(numbers))),
        _short("generated", Words(f"{_generated_briefly(numbers)}, seed {seed}")),
        _short("drafts", *_drafts_briefly(numbers, transcript.origins)),
        *([_short("compared", Words(_compared(comparison)))] if comparison else []),
        _short("verdict", Words(verdict_of(numbers, status, comparison))),
    ]


def _short(name: str, *words: Words) -> Line:
    return [Words(f"{name:<10}", FAINT), *words]


def _prompt_briefly(numbers: Statistics) -> str:
    cached = numbers.cached_token_count
    # The rate of a prompt that was not read would be no rate.
    how = f"{cached} of them cached" if cached else _speed(numbers.prompt_tokens_per_second)
    first = f"first token after {_seconds(numbers.first_token_seconds)}"
    return f"{plural(numbers.prompt_token_count, 'token')}, {how}, {first}"


def _generated_briefly(numbers: Statistics) -> str:
    mean = numbers.tokens_per_round
    per_decode = "" if mean is None else f", {mean:.1f} per decode"
    return f"{_generated(numbers)}{per_decode}"


def _drafts_briefly(numbers: Statistics, origins: Sequence[Origin]) -> list[Words]:
    """Return what became of drafts, each colour of the text at the word that it stands for."""
    if not numbers.drafted_token_count:
        return [Words("none")]
    counts = Counter(origins)
    accepted, drafted = numbers.accepted_token_count, numbers.drafted_token_count
    of = [f"{each.accepted_token_count} {each.name}" for each in numbers.sources]
    named = [name for name in of if not name.startswith("0 ")]
    by = f": {', '.join(named)}" if named else ""
    return [
        Words(f"{accepted} of {drafted} "),
        Words("accepted", STYLES[Origin.DRAFTED]),
        Words(f" ({_share(accepted, drafted)}){by}; {counts[Origin.CORRECTED]} "),
        Words(Origin.CORRECTED.value, STYLES[Origin.CORRECTED]),
        Words(f", {counts[Origin.BONUS]} "),
        Words(Origin.BONUS.value, STYLES[Origin.BONUS]),
    ]


def _compared(comparison: Comparison) -> str:
    runs = plural(len(comparison.without), "run")
    fast, slow = median(comparison.with_drafts), median(comparison.without)
    text = "same text" if comparison.same_text else "another text"
    return f"{runs} each: {fast:.1f} tokens/s with drafts, {slow:.1f} without; {text}"


def verdict_of(numbers: Statistics, status: Status, comparison: Comparison | None) -> str:
    """Return in a sentence whether drafts paid: as measured, else as estimated by this text."""
    if comparison is not None:
        return comparison.verdict
    if numbers.generated_token_count < _LEAST_TOKENS or not numbers.tokens_per_second:
        return "The text is too short to tell."
    if numbers.drafted_token_count:
        speedup = numbers.speedup
        unknown = "How fast the target is alone is not known here."
        return unknown if speedup is None else estimate(speedup)
    if not numbers.sources:
        return "The target wrote this alone."
    # Without a usable draft model, little can have been expected of drafts.
    return sentence(1.0, drafted=False) if status.speculating else "Nothing was drafted."


def table_lines(
    transcript: Transcript, status: Status, comparison: Comparison | None = None
) -> list[Line]:
    """Return everything about a finished generation, a label before each line."""
    assert transcript.started is not None and transcript.finished is not None
    numbers = transcript.finished.statistics
    seed = f"{transcript.started.seed} ({transcript.started.acceptance.value})"
    return [
        _labelled("prompt", _prompt(numbers)),
        _labelled("generated", _generated(numbers)),
        _labelled("drafted", _drafted(numbers)),
        *_source_lines(numbers.sources),
        [Words(_label("origins"), FAINT), *_origins(transcript.origins)],
        _labelled("rounds", _rounds(numbers)),
        _labelled("first token", f"after {_seconds(numbers.first_token_seconds)}"),
        *_time(numbers),
        _labelled("target", _engine(numbers.target_time, status.peer("target"))),
        _labelled("draft", _engine(numbers.draft_time, status.peer("draft"))),
        *_foreseen(numbers),
        *_faults(numbers),
        _labelled("speed-up", _speedup(numbers)),
        *([_labelled("compared", _compared(comparison))] if comparison else []),
        _labelled("seed", seed),
        _labelled("finished", transcript.finished.reason.value),
        _labelled("verdict", verdict_of(numbers, status, comparison)),
    ]


def cut_lines(transcript: Transcript) -> list[Line]:
    """Return what is known of a generation that was not finished."""
    count = plural(len(transcript.token_ids), "token")
    return [
        _labelled("generated", f"{count} before the cut"),
        [Words(_label("origins"), FAINT), *_origins(transcript.origins)],
    ]


def _label(name: str) -> str:
    return f"{name:<13}"


def _labelled(name: str, text: str) -> Line:
    return [Words(_label(name), FAINT), Words(text)]


def _prompt(numbers: Statistics) -> str:
    count, seconds = numbers.prompt_token_count, numbers.prompt_seconds
    speed = _speed(numbers.prompt_tokens_per_second)
    cached = numbers.cached_token_count
    known = f", {cached} of them cached" if cached else ""
    return f"{plural(count, 'token')} in {_seconds(seconds)}, {speed}{known}"


def _generated(numbers: Statistics) -> str:
    count, seconds = numbers.generated_token_count, numbers.generation_seconds
    return f"{plural(count, 'token')} in {_seconds(seconds)}, {_speed(numbers.tokens_per_second)}"


def _drafted(numbers: Statistics) -> str:
    rate = numbers.acceptance_rate
    shown = _NOTHING if rate is None else f"{rate:.3f}"
    drafted, accepted = numbers.drafted_token_count, numbers.accepted_token_count
    steps = numbers.draft_time.step_count
    counted = "" if steps is None else f", {plural(steps, 'draft step')}"
    return f"{plural(drafted, 'token')}, {accepted} accepted, acceptance rate {shown}{counted}"


def _source_lines(sources: Sequence[SourceStatistics]) -> list[Line]:
    """Return a table with a line for each source of draft tokens; nothing without any."""
    if not sources:
        return []
    head = f"{'drafted':>7} {'accepted':>9} {'right of proposed':>19}   cost"
    lines: list[Line] = [[Words(_label("sources") + head, FAINT)]]
    for each in sources:
        decided, agreed = each.decided_token_count, each.agreed_token_count
        would = _NOTHING if decided is None else f"{agreed} of {decided}"
        numbers = f"{each.drafted_token_count:>7} {each.accepted_token_count:>9} {would:>19}"
        name = Words(_label(f"  {each.name}"), source_style(each.name))
        lines.append([name, Words(f"{numbers}   {_cost(each)}")])
    return lines


def _cost(source: SourceStatistics) -> str:
    """Return the time that a source took, and how much that is for each of its drafted tokens."""
    if source.seconds is None:
        return _NOTHING
    each = source.microseconds_per_token
    shown = f"{1e3 * source.seconds:.1f} ms" if source.seconds < 1 else _seconds(source.seconds)
    if each is None:
        return shown
    return f"{shown}, {f'{each:.0f} us' if each < 1000 else f'{each / 1000:.1f} ms'} a token"


def _origins(origins: Sequence[Origin]) -> list[Words]:
    """Return the legend: each origin in its own style, with its number of tokens."""
    counts = Counter(origins)
    known = [origin for origin in Origin if origin is not Origin.UNSPECIFIED or counts[origin]]
    words: list[Words] = []
    for origin in sorted(known, key=list(STYLES).index):
        words += [Words(f"{counts[origin]} "), Words(origin.value, STYLES[origin]), Words(", ")]
    return words[:-1]


def _rounds(numbers: Statistics) -> str:
    mean = numbers.tokens_per_round
    shown = _NOTHING if mean is None else f"{mean:.2f}"
    last = f"draft length {numbers.draft_length} at the end"
    return f"{numbers.round_count}, {shown} tokens per round, {last}"


def _time(numbers: Statistics) -> list[Line]:
    """Return where the time went; the parts add up to the whole."""
    parts = (
        ("draft", numbers.draft_wait_seconds - numbers.draft_network_seconds),
        ("verify", numbers.verify_wait_seconds - numbers.verify_network_seconds),
        ("network", numbers.network_seconds),
        ("other", numbers.other_seconds),
    )
    total = numbers.total_seconds
    shares = [f"{name} {_seconds(part)} ({_share(part, total)})" for name, part in parts]
    return [
        _labelled("time", f"{_seconds(total)} = {' + '.join(shares[:2])}"),
        _labelled("", f"+ {' + '.join(shares[2:])}"),
    ]


def _engine(spent: EngineTime, peer: PeerStatus | None) -> str:
    if peer is None or peer.model is None:
        return _NOTHING
    return (
        f"load {_seconds(peer.model.load_seconds)}, prompt {_seconds(spent.prompt_seconds)}, "
        f"decode {_seconds(spent.decode_seconds - spent.prompt_seconds)}, "
        f"sampling {_seconds(spent.sample_seconds)}"
    )


def _speedup(numbers: Statistics) -> str:
    """Return the ratio to what the target's decodes say of it alone."""
    ratio = numbers.speedup
    return _NOTHING if ratio is None else f"{ratio:.2f} times the target alone, estimated"


def _faults(numbers: Statistics) -> list[Line]:
    """Return a line only when something had to be mended on the way."""
    draft, target = numbers.draft_fault_count, numbers.target_fault_count
    if not draft and not target:
        return []
    return [_labelled("mended", f"draft {plural(draft, 'time')}, target {plural(target, 'time')}")]


def _foreseen(numbers: Statistics) -> list[Line]:
    """Return a line only when the draft wrote several lines and was wrong."""
    if not numbers.forked_miss_count:
        return []
    foreseen, misses = numbers.foreseen_miss_count, numbers.forked_miss_count
    return [_labelled("foreseen", f"{foreseen} of {misses} wrong draft tokens")]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"


def _speed(value: float | None) -> str:
    return f"{_NOTHING if value is None else f'{value:.1f}'} tokens/s"


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.0f} %" if total else _NOTHING


# --- JSON ---


def json_object(
    transcript: Transcript, status: Status, comparison: Comparison | None = None
) -> dict[str, Any]:
    """Return everything about a finished generation, for json.dumps."""
    assert transcript.started is not None and transcript.finished is not None
    numbers = transcript.finished.statistics
    compared = comparison and {**asdict(comparison), "ratios": comparison.ratios}
    return {
        "text": transcript.text,
        "prompt_token_ids": list(transcript.started.prompt_token_ids),
        "token_ids": transcript.token_ids,
        "origins": [origin.value for origin in transcript.origins],
        "sources": transcript.sources,
        "lines": transcript.lines,
        "seed": transcript.started.seed,
        "acceptance": transcript.started.acceptance.value,
        "finish_reason": transcript.finished.reason.value,
        "statistics": _statistics_object(numbers),
        "comparison": compared,
        "verdict": verdict_of(numbers, status, comparison),
        "models": {role: _model_object(peer.model) for role, peer in _peers_by_role(status)},
    }


def _statistics_object(numbers: Statistics) -> dict[str, Any]:
    return {
        **asdict(numbers),
        "sources": [
            {**asdict(each), "microseconds_per_token": each.microseconds_per_token}
            for each in numbers.sources
        ],
        "acceptance_rate": numbers.acceptance_rate,
        "tokens_per_round": numbers.tokens_per_round,
        "tokens_per_second": numbers.tokens_per_second,
        "prompt_tokens_per_second": numbers.prompt_tokens_per_second,
        "speedup": numbers.speedup,
    }


def _peers_by_role(status: Status) -> Iterator[tuple[str, PeerStatus]]:
    for role in dict.fromkeys(peer.role for peer in status.peers):
        if (peer := status.peer(role)) is not None:
            yield role, peer


def _model_object(model: ModelInfo | None) -> dict[str, Any] | None:
    return None if model is None else asdict(model)
