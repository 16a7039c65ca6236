"""What teaching takes: bytes of disk and memory, before anything is begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider_teach.work_progress import duration

if TYPE_CHECKING:
    from outrider_teach.head import HeadShape

_STEP_TOKENS = 2048  # answered tokens of a training step
_KEPT_ROWS = 36  # of the target's width, that a step keeps of a token for its gradients
_LOGIT_ROWS = 4096  # of the drafted tokens, that are in memory at once
_PROMPT_ROWS = 48  # of a prompt that are kept beside its answer, of at most 64
_ANSWER = 130  # tokens of an answer on average, of at most 256: measured with SmolLM2-135M
DRAFT_LAYERS = 2  # of a draft model
_F32, _F16 = 4, 2  # bytes
_COPIES = 4  # of a head's weights in training: gradients, and two means of them, beside themselves
_SERVICES = 450_000_000
"""Bytes of target, orchestrator and tool without weights and cache: measured with SmolLM2-135M."""
_TRAINER = 1_100_000_000
"""Bytes of Python with torch while it trains, and of what its allocator keeps: with SmolLM2-135M
1.5 and 1.8 GB were seen at most in two runs, of which the arrays that are counted here take .56."""
_TRAINED = 440_000_000  # bytes of Python with torch after it trained: measured with SmolLM2-135M
_CHECKPOINTS = 5  # copies of a head's weights on disk: the best, and with what is beside the last


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSizes:
    """Of a target, whatever its architecture."""

    name: str
    layers: int
    width: int
    vocabulary: int
    file_bytes: int
    cell_bytes: int
    """Of its cache for a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run takes."""

    target: TargetSizes
    row_bytes: int
    """Of a token on disk."""
    tokens: int
    """Answered ones that are wanted; 0: they are there."""
    most_bytes: int
    """Of rows on disk."""
    sessions: int
    context: int
    """Tokens of a session."""
    student: str
    """What is taught, in words: a head, say."""
    numbers: int
    """Its weights that are learned."""
    matrices: int
    """Of the target's tokens, that it computes with: embeddings, and a model the output, too."""
    drafted: int
    """Tokens that it learns in each step."""
    is_tried: bool
    """Whether it is tried with its target at the end."""

    @property
    def row_disk(self) -> int:
        """Bytes of the rows, with those of prompts."""
        wanted = self.tokens * self.row_bytes * (_ANSWER + _PROMPT_ROWS) // _ANSWER
        return min(self.most_bytes, wanted)

    @property
    def disk(self) -> int:
        """Bytes of the folder of work, and of the file that comes out."""
        return self.row_disk + _CHECKPOINTS * _F32 * self.numbers

    @property
    def writing_memory(self) -> int:
        """Bytes while the target writes."""
        return self._served(self.sessions) + _SERVICES

    @property
    def trying_memory(self) -> int:
        """Bytes while the target writes with a draft, and another one without; 0: neither does."""
        if not self.is_tried:
            return 0
        return 2 * (self._served(1) + _SERVICES) + _TRAINED

    def _served(self, sessions: int) -> int:
        """Return the bytes of a target's weights and cache."""
        return self.target.file_bytes + sessions * self.context * self.target.cell_bytes

    @property
    def training_memory(self) -> int:
        """Bytes while it is trained: the rows are mapped, and need none of their own."""
        matrices = self.matrices * _F16 * self.target.vocabulary * self.target.width
        step = _F32 * (_STEP_TOKENS * _KEPT_ROWS * self.target.width + _LOGIT_ROWS * self.drafted)
        return (1 + _COPIES) * _F32 * self.numbers + matrices + step + _TRAINER

    @property
    def memory(self) -> int:
        """Bytes at most."""
        writing = self.writing_memory if self.tokens else 0
        return max(writing, self.training_memory, self.trying_memory)

    def lines(self, folder: str, minutes: float, device: str) -> list[str]:
        """Return what it will take, for people."""
        target = self.target
        training = f"{show_bytes(self.training_memory)} to train"
        if self.is_tried:
            training += f", {show_bytes(self.trying_memory)} to try it"
        writing = [
            f"writes    {self.tokens:,} tokens of answers, {self.sessions} at once: "
            f"{show_bytes(self.disk)} in {folder}",
            f"memory    {show_bytes(self.writing_memory)} to write, {training}",
        ]
        return [
            f"target    {target.name}: {target.layers} layers of {target.width}, "
            f"{target.vocabulary:,} tokens",
            *(writing if self.tokens else [f"memory    {training}"]),
            f"trains    {self.student} of {self.numbers / 1e6:.1f} million weights that drafts "
            f"{self.drafted:,} tokens, on {device}, for {duration(60 * minutes)} at most",
        ]


def head_numbers(shape: HeadShape, drafted: int) -> int:
    """Return how many weights a head of these sizes has."""
    width, size = shape.width, shape.head_size
    attention = 2 * width * size * (shape.heads + 2 * shape.kv_heads) + shape.heads * size * width
    return (shape.row_width + 3 * shape.feed_forward + drafted) * width + attention


def draft_numbers(shape: HeadShape) -> int:
    """Return how many weights a draft model of these sizes has of its own."""
    attention = 2 * shape.head_size * (shape.heads + shape.kv_heads)
    return DRAFT_LAYERS * shape.width * (attention + 3 * shape.feed_forward)


def show_bytes(count: float) -> str:
    """Return a size in the unit that has fewest digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.{1 if count < 10 * unit else 0}f} {name}"
    return f"{count:.0f} bytes"


def read_bytes(text: str) -> int | None:
    """Return the bytes that `8GB`, `500MB` or a number says; None where it says none."""
    number = text.upper().removesuffix("B").strip()
    scale = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(number[-1:], 1)
    number = number.rstrip("KMGT").strip()
    try:
        found = float(number) * scale
    except ValueError:
        return None
    return int(found) if 0 < found < 1e18 else None
