"""What a generation brings: one value for each event, from the orchestrator to every surface. Pure.

First there is one `Started`; then of each completion any number of `Delta` and one `Finished`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.messages import ANY_MODEL, DraftEnd, FinishReason, ModelReference, Origin, Rule
from outrider.sampling import SamplingParameters
from outrider.speculation import MODEL


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A run of whole characters and the origin of the token that completed it."""

    text: str
    origin: Origin
    control: bool = False  # the text is the name of a control token


@dataclass(frozen=True, slots=True)
class Token:
    """A token and what it adds to a text; that need not be whole characters."""

    token_id: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and its probability."""

    token: Token
    probability: float


@dataclass(frozen=True, slots=True)
class Position:
    """What both models thought about one position; no candidates where none were reported."""

    target: tuple[Candidate, ...]
    draft: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round verified, from 1, and what came of it."""

    round: int
    committed_token_count: int
    draft: tuple[Token, ...]
    accepted_token_count: int
    target: Token
    draft_end: DraftEnd
    positions: tuple[Position, ...]
    draft_sources: tuple[str, ...] = ()  # of each draft token; none: all are the draft model's
    # The draft's line that each is of: 0 its first one, else a runner-up line; none: all are 0.
    draft_lines: tuple[int, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Who proposed each draft token."""
        return self.draft_sources or (MODEL,) * len(self.draft)


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability, and of the most probable tokens there."""

    value: float
    alternatives: tuple[tuple[Token, float], ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is read."""

    prompt_token_ids: tuple[int, ...]
    seed: int
    acceptance: Rule
    cached_token_count: int = 0  # of the prompt; jobs report it
    truncated: bool = False  # the middle of the prompt was dropped
    context_token_count: int = 0
    model: ModelReference = ANY_MODEL  # that writes the text
    token_limit: int = 0  # tokens that may follow the prompt
    sampling: SamplingParameters = field(default_factory=SamplingParameters)  # that is used
    prompt_logprobs: tuple[Logprob, ...] = ()  # if they were asked for; the first says nothing
    untruncated_token_count: int = 0  # of the prompt, with what was dropped


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added; a character may come later than the ids of its tokens.

    `logprobs` has one for every id if they were asked for. `prompt_logprobs`
    continues those of Started where they are too many for one message.
    """

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    pieces: tuple[TextPiece, ...]
    report: RoundReport | None = None
    logprobs: tuple[Logprob, ...] = ()
    choice: int = 0  # which completion, of several
    prompt_logprobs: tuple[Logprob, ...] = ()
    token_texts: tuple[bytes, ...] = ()  # what each id adds to the text
    statistics: Statistics | None = None  # so far, if they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """What became of the draft tokens of one source."""

    name: str  # as among the drafters of a request
    drafted_token_count: int  # verified
    accepted_token_count: int
    decided_token_count: int | None  # proposed, drafted or not, and compared with the text
    agreed_token_count: int | None  # and of them, those that agree: it would have had accepted
    seconds: float | None  # that it took, wherever it drafts; None where not reported

    @property
    def microseconds_per_token(self) -> float | None:
        """What one of its drafted tokens cost; None when none was drafted."""
        if self.seconds is None:
            return None
        return _ratio(1e6 * self.seconds, self.drafted_token_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """A model service's own time over a generation."""

    queue_seconds: float = 0.0
    decode_seconds: float = 0.0
    sample_seconds: float = 0.0
    prompt_seconds: float = 0.0  # of the decoding, what the first answer took
    step_count: int | None = None  # decodes that gave rows for it; None where it does not say
    runner_up_seconds: float = 0.0  # of a draft, beside these: decodes for runner-up lines alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """What decides about drafts goes by, all of it measured; rates are tokens per second."""

    token_rate: float = 0.0  # over the last rounds
    plain_token_rate: float = 0.0  # expected without a draft
    forecast_token_rate: float = 0.0  # expected with what pays most; 0 where the policy is another
    target_alone_token_rate: float = 0.0  # in llama.cpp, without messages; 0 where not known
    acceptance: float = 0.0  # of a draft token of which nothing is known
    draft_token_seconds: float = 0.0  # the draft's own time for one
    draft_latency_seconds: float = 0.0  # from an order to its first frame, beside that
    round_overhead_seconds: float = 0.0  # of a round, beside the target's decode
    run_ahead: bool = False
    takes_turns: bool = False  # draft and target share cores and decode one after the other
    head: bool = False  # the draft is one, which never drafts while the target verifies
    decode_costs: tuple[tuple[int, float], ...] = ()  # rows and seconds, as of now


NOTHING_LEARNED = ControllerView()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a generation took: the fields of GenerationStatistics, durations in seconds."""

    prompt_token_count: int = 0
    generated_token_count: int = 0
    drafted_token_count: int = 0
    accepted_token_count: int = 0
    round_count: int = 0
    drafted_round_count: int = 0
    draft_length: int = 0
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()
    first_token_seconds: float = 0.0
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    draft_wait_seconds: float = 0.0
    verify_wait_seconds: float = 0.0
    target_time: EngineTime = EngineTime()
    draft_time: EngineTime = EngineTime()
    wire_byte_count: int = 0
    draft_fault_count: int = 0
    target_fault_count: int = 0
    verify_network_seconds: float = 0.0
    draft_network_seconds: float = 0.0
    plain_round_seconds: float = 0.0  # estimated for a round without a draft; 0 when unknown
    controller: ControllerView = NOTHING_LEARNED
    cached_token_count: int = 0  # of the prompt
    accepted_by_round: tuple[int, ...] = ()  # in each round that carried a draft
    drafted_by_round: tuple[int, ...] = ()  # in the same rounds
    sources: tuple[SourceStatistics, ...] = ()
    accepted_prediction_token_count: int = 0  # of the request's prediction
    rejected_prediction_token_count: int = 0
    forked_miss_count: int = 0  # tokens in which a draft that wrote several lines was wrong
    foreseen_miss_count: int = 0  # of these, those that another of its lines had right

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted per drafted token; None when nothing was drafted."""
        return _ratio(self.accepted_token_count, self.drafted_token_count)

    @property
    def tokens_per_round(self) -> float | None:
        """Generated tokens per round of the target; None without a round."""
        return _ratio(self.generated_token_count, self.round_count)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second since it; None when there are none."""
        return _ratio(max(0, self.generated_token_count - 1), self.generation_seconds)

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Tokens of the prompt per second of its round; None without a round."""
        return _ratio(self.prompt_token_count, self.prompt_seconds)

    @property
    def speedup(self) -> float | None:
        """Speed over the target's alone, as llama.cpp runs it; None when nothing was drafted."""
        if not self.drafted_token_count or self.tokens_per_second is None:
            return None
        return _ratio(self.tokens_per_second, self.controller.target_alone_token_rate)

    @property
    def network_seconds(self) -> float:
        """Of the waiting, what the services' own times do not explain."""
        return self.verify_network_seconds + self.draft_network_seconds

    @property
    def total_seconds(self) -> float:
        """From the request to the last token."""
        return self.first_token_seconds + self.generation_seconds

    @property
    def other_seconds(self) -> float:
        """Neither waiting for the draft nor for the target."""
        return max(0.0, self.total_seconds - self.draft_wait_seconds - self.verify_wait_seconds)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a completion."""

    reason: FinishReason
    statistics: Statistics
    stop_sequence: str = ""  # the one that ended it
    truncated: bool = False  # something was dropped from the context
    choice: int = 0


Event = Started | Delta | Finished


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
