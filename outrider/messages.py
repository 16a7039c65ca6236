"""The values that the services exchange, free of protobuf. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from outrider.distribution import Distribution
from outrider.errors import ContextExhausted, InvalidRequest, ModelChanged, PositionPastCache
from outrider.row_window import NO_ROWS, RowWindow
from outrider.sampling import SamplingParameters
from outrider.trees import Tree

SALT_BYTES = 16
"""Of a cache salt, where there is one."""

MAX_DRAFT = 64
"""Draft tokens of one round at most."""

MAX_PROMPT_BYTES = 8 << 20
"""Of a prompt that a draft is sent as a text of its own, in UTF-8."""

MAX_CONTINUED = 512
"""Tokens that a target may write by itself at most: two seconds of 4 ms each. It is allowed more
when half are used; a message costs 2 ms of the processor."""

MAX_BEAMS = 16
"""Completions that a beam search keeps in view at most."""

MAX_CANDIDATES = 8
"""Candidates reported for one position at most."""

MAX_FINISHING = 3
"""Tokens after a text's limit that may finish a character, which has 4 bytes at most."""

MAX_SCORES = 64
"""Tokens of a text that are scored in one decode, and said in one message; with 128 alternatives
each they take a reader some 20 ms."""

FRAME_TOKENS, FRAME_SECONDS = 4, 0.005
"""A frame has so many tokens, or is sent so long after its first one, unless an order says how
many: a message takes a few ms of the network and of a processor."""

MAX_LINES = 8
"""Lines that a draft keeps for one session at most, the one it would write by itself included."""

MAX_PIECES = 64
"""Pieces of runner-up lines in one frame at most; with MAX_LINES tokens each on average."""

Candidates = Sequence[tuple[int, float]]
"""The most probable token ids of a position and their probabilities, in falling order."""

MAX_TOP_LOGPROBS = 128
"""The most probable tokens reported for one position at most."""

Logprobs = Sequence[tuple[int, float]]
"""Token ids of a position and the natural logarithms of their probabilities.

The most probable ones come first, in falling order, as many as were asked for;
then the sampled one, or the others of the row, where they are not among them.
"""

_MOST_STEPS = 2**31 - 1
"""Decodes that a statistic can hold."""

VOCABULARY_SLACK = 128
"""Tail tokens by which the vocabularies of a pair may differ in size."""


class Rule(Enum):
    """How the orchestrator decides about draft tokens."""

    MATCH = "match"
    SHARED_NOISE = "shared-noise"
    REJECTION = "rejection"


class Form(Enum):
    """What a row of the target's answer is."""

    SAMPLED = "sampled"
    DISTRIBUTIONS = "distributions"
    LOGITS = "logits"


class Origin(Enum):
    """Where a token came from."""

    UNSPECIFIED = "unspecified"
    DRAFTED = "drafted"  # proposed by the draft and accepted
    CORRECTED = "corrected"  # the target's, in place of a rejected one
    BONUS = "bonus"  # the target's, after a fully accepted draft
    PLAIN = "plain"  # the target's, in a round without a draft


class FinishReason(Enum):
    """Why a generation ended."""

    UNSPECIFIED = "unspecified"
    END_OF_TEXT = "end of text"
    TOKEN_LIMIT = "token limit"
    STOP_SEQUENCE = "stop sequence"
    CONTEXT_FULL = "context full"
    CANCELLED = "cancelled"


class DraftEnd(Enum):
    """Why a round's draft is as long as it is."""

    UNSPECIFIED = "unspecified"
    LENGTH = "it has the length that was asked for"
    END_OF_TEXT = "it ends the text"
    TOKEN_LIMIT = "the token limit leaves no more"
    CONTEXT = "a context leaves no more"
    SHORT = "no more was there when the target was free"
    LATE = "the draft is past its deadline"
    PAUSED = "plain rounds follow a draft that failed or was dropped"
    ABSENT = "there is no draft service"
    OFF = "none is wanted"
    PROMPT = "the first round is the prompt's"
    DOUBT = "the draft was not sure enough of the next token"
    ENOUGH = "more would not have paid"


class PeerState(Enum):
    """Where a model service stands."""

    UNSPECIFIED = "unspecified"
    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """How many of the most probable tokens to report, and under which distribution."""

    top_count: int
    after_sampling: bool = (
        False  # under the distribution that is drawn from, not the model's own softmax
    )


@dataclass(frozen=True, slots=True)
class Span:
    """From `position` on, the sequence is exactly `token_ids`."""

    position: int
    token_ids: Sequence[int]

    @property
    def end(self) -> int:
        """The length of the sequence."""
        return self.position + len(self.token_ids)


NOTHING_DROPPED = Span(0, ())


@dataclass(frozen=True, slots=True)
class ModelReference:
    """Which model is meant: `identity` decides, empty for any; `name` is for people."""

    identity: bytes = b""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.identity.hex()[:8]})"

    def check(self, hosted: ModelReference) -> None:
        """Raise ModelChanged unless `hosted` is the model that is meant."""
        if self.identity and self.identity != hosted.identity:
            raise ModelChanged(str(self), str(hosted))


ANY_MODEL = ModelReference()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParameters:
    """Everything a service needs to start a session anywhere."""

    session_id: bytes
    attempt: int
    rule: Rule
    sampling: SamplingParameters
    seed: int
    choice: int
    prompt_count: int
    token_limit: int
    vocabulary: int  # ids of the target are [0, vocabulary)
    candidate_count: int = 0  # to report with every row and drafted token
    min_probability: float = 0.0  # the draft stops before a token less probable to it
    min_ratio: float = 0.0  # and before one not so many times as likely as the next best
    logprobs: LogprobOptions | None = None
    dropped: Span = NOTHING_DROPPED
    model: ModelReference = ANY_MODEL  # that has to host the session
    salt: bytes = b""  # only sessions of an equal salt share cached prefixes
    end_token_ids: frozenset[int] = frozenset()  # after one of them a target does not continue
    vocabulary_key: bytes = b""  # of the target's, where a draft translates
    own_prompt: str = ""  # what a draft reads in place of the prompt; empty: the prompt itself

    def whole(self, text: Sequence[int]) -> Sequence[int]:
        """Return a text with what was dropped from it, as samplers and noise know it."""
        if not self.dropped.token_ids:
            return text
        position = self.dropped.position
        return [*text[:position], *self.dropped.token_ids, *text[position:]]


def compose(held: Sequence[int], span: Span) -> list[int]:
    """Return the whole sequence that a span means to someone who holds `held`.

    Raises PositionPastCache when the span starts after what is held.
    """
    if span.position > len(held):
        raise PositionPastCache(span.position, len(held))
    return [*held[: span.position], *span.token_ids]


def check_room(token_count: int, capacity: int) -> None:
    """Raise ContextExhausted when the tokens do not fit."""
    if token_count > capacity:
        raise ContextExhausted(token_count, capacity)


@dataclass(frozen=True, slots=True)
class Order:
    """To the draft: what is committed, and the length at which drafting stops."""

    number: int
    committed: Span
    draft_until: int
    frame_tokens: int = 0  # at most; 0 leaves it to the draft
    stop_below: int = 0  # a token less sure than this is the last one; in units of a confidence
    line_count: int = 1  # lines that the draft may keep, runner-up lines included
    split_chance: float = 0.0  # of a runner-up to be right, from which it gets a line
    rows: RowWindow = NO_ROWS  # of the committed text, that a head was not sent yet


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """From the draft: a piece of a line that it writes in case another one is wrong.

    That is what follows where line `parent` has another token than this one at `fork`.
    """

    line: int  # its number, above its parent's; the line that starts over has 0
    parent: int
    fork: int  # the position of its first token
    position: int  # and of the first one of this piece
    token_ids: Sequence[int]
    confidences: bytes = b""


@dataclass(frozen=True, slots=True)
class Frame:
    """From the draft: a piece of the line that is named by its base.

    `rows` has the row of every token under the rejection rule and is empty
    otherwise; `candidates` is empty unless the session asks for them.
    `completed` is the order that ends here, or 0. `line` is the number of the line that its
    tokens are of: 0, or that of the runner-up line with which the text continued.
    """

    base: int
    position: int
    token_ids: Sequence[int]
    confidences: bytes = b""
    rows: Sequence[Distribution] = ()
    completed: int = 0
    candidates: Sequence[Candidates] = ()
    line: int = 0
    runner_ups: Sequence[RunnerUp] = ()


@dataclass(frozen=True, slots=True)
class OwnDraftOrder:
    """What a target's own draft is to do before each decode that has no other draft."""

    count: int = 0  # tokens for a decode at most; 0: it does not draft
    stop_below: int = 0  # a token less sure than this is the last one; in units of a confidence


NO_OWN_DRAFT = OwnDraftOrder()


@dataclass(frozen=True, slots=True)
class Round:
    """To the target: a prefix, its pending token last, and draft tokens that may follow."""

    number: int
    prefix: Span
    draft: Sequence[int]
    form: Form
    is_ahead: bool = False  # sent before the answer that it depends on
    survivals: bytes = b""  # of the draft tokens, in 1/255; lets the target verify fewer
    mirostat_mu: float | None = None  # after the prefix; None at the start and without mirostat
    continue_count: int = 0  # after the prefix, the target may write so many tokens by itself
    decode_limit: int = 0  # draft tokens that one decode verifies at most; 0: no limit
    gathers: bool = False  # nobody waits for each token: the target may send several at once
    own_draft: OwnDraftOrder = NO_OWN_DRAFT  # while the target writes by itself
    parents: Sequence[int] = ()  # of the draft tokens, where they are a tree
    wants_rows: bool = False  # for a head elsewhere: hidden rows come with the answers

    @property
    def tree(self) -> Tree:
        """The draft tokens, and which of them each follows."""
        return Tree(self.draft, self.parents) if self.parents else Tree.chain(self.draft)

    @property
    def continue_until(self) -> int:
        """The length of the text up to which the target continues by itself."""
        return self.prefix.end + self.continue_count

    @property
    def row_count(self) -> int:
        """Rows asked for."""
        return len(self.draft) + 1


def contradicts(earlier: Round, later: Round) -> bool:
    """Return whether the later round says other tokens than the earlier one assumed.

    A tree assumes nothing of what follows its prefix.
    """
    assumed = [*earlier.prefix.token_ids, *(() if earlier.parents else earlier.draft)]
    start = max(earlier.prefix.position, later.prefix.position)
    end = min(earlier.prefix.position + len(assumed), later.prefix.end)
    if later.prefix.position < earlier.prefix.position:
        return True
    own = later.prefix.token_ids
    offset, own_offset = start - earlier.prefix.position, start - later.prefix.position
    count = max(0, end - start)
    return list(assumed[offset : offset + count]) != list(own[own_offset : own_offset + count])


@dataclass(frozen=True, slots=True)
class Rows:
    """From the target: what follows the prefix and each draft token, in one of three forms.

    `candidates` and `logprobs` come beside any of them when the session asks
    for them, and mirostat's state after each sampled id where it is used.
    """

    sampled: Sequence[int] = ()
    distributions: Sequence[Distribution] = ()
    logits: Sequence[bytes] = ()
    candidates: Sequence[Candidates] = ()
    logprobs: Sequence[Logprobs] = ()
    mirostat_mus: Sequence[float] = ()

    def __len__(self) -> int:
        return max(len(self.sampled), len(self.distributions), len(self.logits))

    def check(self, form: Form) -> None:
        """Raise InvalidRequest unless there are rows, and all of them have this form."""
        own = {
            Form.SAMPLED: self.sampled,
            Form.DISTRIBUTIONS: self.distributions,
            Form.LOGITS: self.logits,
        }[form]
        if not own or len(own) != len(self):
            raise InvalidRequest("rows", f"{len(own)} of {len(self)} are {form.value}")

    def __getitem__(self, part: slice) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.sampled[part],
            self.distributions[part],
            self.logits[part],
            self.candidates[part],
            self.logprobs[part],
            self.mirostat_mus[part],
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of all parts, one after the other."""
        return cls(
            [each for rows in parts for each in rows.sampled],
            [each for rows in parts for each in rows.distributions],
            [each for rows in parts for each in rows.logits],
            [each for rows in parts for each in rows.candidates],
            [each for rows in parts for each in rows.logprobs],
            [each for rows in parts for each in rows.mirostat_mus],
        )


@dataclass(slots=True)
class ServiceTime:
    """What a model service says of its own time: seconds, and what its decodes were of.

    Decodes that sessions share are counted in full, and others' rows in them too.
    """

    decode: float = 0.0
    queue: float = 0.0  # waited for the engine
    sample: float = 0.0  # of its own work between decodes
    draft: float = 0.0  # of the target's own draft
    runner_ups: float = 0.0  # of a draft's decodes for runner-up lines alone, beside `decode`
    rows: int = 0
    attended: int = 0  # tokens that the rows attended to, summed over the rows
    sessions: int = 0  # that generate in the decodes, summed over those; none that read a prompt
    steps: int | None = None  # decodes that gave rows for this session; None: nobody has said so

    @property
    def work(self) -> float:
        """What the service did for the session, waiting left out."""
        return self.decode + self.sample + self.draft

    @property
    def total(self) -> float:
        """All of it."""
        return self.queue + self.work

    def add(self, more: ServiceTime) -> None:
        """Count more of it."""
        self.decode += more.decode
        self.queue += more.queue
        self.sample += more.sample
        self.draft += more.draft
        self.runner_ups += more.runner_ups
        self.rows += more.rows
        self.attended += more.attended
        self.sessions += more.sessions
        if more.steps is not None:
            self.steps = min(_MOST_STEPS, (self.steps or 0) + more.steps)

    def add_step(self, gave_rows: bool) -> None:
        """Count a decode among the steps if it gave rows for this session."""
        self.steps = (self.steps or 0) + gave_rows

    @classmethod
    def of_all(cls, times: Iterable[ServiceTime]) -> ServiceTime:
        """Return the sum of some."""
        whole = cls()
        for each in times:
            whole.add(each)
        return whole

    def shared(self, decode_count: int) -> ServiceTime:
        """Return what one of so many decodes took."""
        if decode_count == 1:
            return self
        return ServiceTime(
            decode=self.decode / decode_count,
            queue=self.queue / decode_count,
            sample=self.sample / decode_count,
            draft=self.draft / decode_count,
            rows=self.rows // decode_count,
            attended=self.attended // decode_count,
            sessions=self.sessions // decode_count,
        )


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """What a target's own draft drafted for one decode, and how sure it was of each."""

    token_ids: Sequence[int] = ()
    confidences: bytes = b""
    spent: ServiceTime = field(default_factory=ServiceTime)  # on the draft and the decode


NO_OWN_TOKENS = OwnTokens()


@dataclass(frozen=True, slots=True)
class Answer:
    """From the target: rows that follow the text at `position`, of one decode or of several.

    The first decode verified `drafted` draft tokens and has one row more, or fewer where nothing
    may follow one of them; each row after those is of a decode without a draft, and the text has
    the row before it. Where the target's own draft drafted, `own_drafts` has an entry for each
    decode, which has a row more than that: the text has what the rows before it accept.
    """

    round: int  # the newest one that the target had read
    position: int
    drafted: int
    rows: Rows
    own_drafts: Sequence[OwnTokens] = ()
    spent: ServiceTime = field(default_factory=ServiceTime)  # on all its decodes
    hidden: RowWindow = NO_ROWS  # of the text and of what was verified, for a head elsewhere

    @property
    def decodes(self) -> Sequence[tuple[OwnTokens, Rows]]:
        """What the target's own draft drafted for each decode, and the decode's rows."""
        rows, counts = self.rows, self.row_counts
        own = self.own_drafts or [NO_OWN_TOKENS] * len(counts)
        ends = list(accumulate(counts))
        return [
            (its_own, rows[end - count : end] if len(counts) > 1 else rows)
            for its_own, end, count in zip(own, ends, counts, strict=True)
        ]

    @property
    def row_counts(self) -> list[int]:
        """The rows of each decode."""
        if not self.own_drafts:
            return [self.drafted + 1] + [1] * (len(self.rows) - self.drafted - 1)
        counts = [len(own.token_ids) + 1 for own in self.own_drafts]
        return [counts[0] + self.drafted, *counts[1:]]

    @property
    def decode_count(self) -> int:
        """The decodes that it is of."""
        return len(self.own_drafts) or max(1, len(self.rows) - self.drafted)
