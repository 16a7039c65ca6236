"""What reaches llama.cpp when sequences are cut: fake memories of each contract, used at random.

Each fake has the traps of its kind: a window that loses cells without a word, snapshots that are
stale below the newest decode's rows and good for one cut, states that cannot be cut.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from outrider.costs import MOST_REDONE
from outrider.engine import rollback
from outrider.engine.model import Chunk, Rollback
from outrider.engine.rollback import (
    MOST_CHECKPOINTS,
    RollbackMemory,
    certain_count,
)
from outrider.errors import DecodeFailed

WINDOW, REACH, SNAPSHOTS = 6, 8, 3
STEPS = 4000
STALE = -1
"""A token that is not the one of the text: the memory is in a state of another text."""


@dataclass
class FakeMemory:
    """One sequence, as the tokens that its state is made of. Raises what would be wrong in C."""

    kind: Rollback
    tokens: list[int] = field(default_factory=list)
    lost: int = 0  # tokens from the start whose cells of the window are gone
    last_rows: int = 0
    pending: bool = False

    def decode(self, token_ids: list[int]) -> None:
        self.tokens += token_ids
        self.last_rows, self.pending = len(token_ids), False
        if self.kind is Rollback.WINDOW:
            # What the batch before did not look at may be overwritten.
            before = len(self.tokens) - len(token_ids)
            self.lost = max(self.lost, before - WINDOW + 1 - (REACH - len(token_ids)), 0)

    def cut(self, sequence: int, token_count: int) -> bool:
        depth = len(self.tokens) - token_count
        if depth <= 0:
            return True
        if token_count == 0 or self.kind in (Rollback.FULL, Rollback.WINDOW):
            del self.tokens[token_count:]
            self.lost = 0 if token_count == 0 else self.lost
            return True
        if self.kind is Rollback.SNAPSHOTS and not self.pending and depth <= SNAPSHOTS:
            del self.tokens[token_count:]
            if depth > self.last_rows - 1:
                self.tokens = [STALE] * token_count
            self.pending = True
            return True
        return False

    def first_position(self, sequence: int) -> int:
        return self.lost if self.tokens else -1

    def save(self, sequence: int) -> list[int]:
        return list(self.tokens)

    def restore(self, sequence: int, saved: list[int]) -> bool:
        self.tokens, self.pending = list(saved), False
        self.lost = max(0, len(saved) - WINDOW + 1) if self.kind is Rollback.WINDOW else 0
        return True

    def check(self, text: list[int]) -> None:
        assert self.tokens == text
        if self.kind is Rollback.WINDOW and text:
            assert self.lost <= max(0, len(text) - WINDOW + 1), "a cell that is needed is gone"


def memory_of(kind: Rollback) -> tuple[FakeMemory, RollbackMemory]:
    fake = FakeMemory(kind)
    return fake, RollbackMemory(
        fake,
        kind,
        1,
        WINDOW if kind is Rollback.WINDOW else 0,
        REACH,
        SNAPSHOTS if kind is Rollback.SNAPSHOTS else 0,
    )


class Engine:
    """One sequence, as `LlamaModel` uses it."""

    def __init__(self, kind: Rollback) -> None:
        self.fake, self.memory = memory_of(kind)
        self.text: list[int] = []
        self.read_first = 0  # decodes for a checkpoint between the tokens of a chunk

    def decode(self, tokens: list[int], rows: int, certain: int | None = None) -> None:
        chunk = Chunk(0, len(self.text), tokens, rows, certain=certain)
        if lead := self.memory.lead_count(chunk):
            self.read_first += 1
            self._decode(tokens[:lead])
            tokens = tokens[lead:]
            chunk = replace(chunk, position=chunk.position + lead, token_ids=tokens)
        self.memory.prepare(chunk)
        self._decode(tokens)

    def _decode(self, tokens: list[int]) -> None:
        self.fake.decode(tokens)
        self.text += tokens
        self.memory.note(0, len(self.text), len(tokens))

    def cut(self, count: int) -> int:
        held = self.memory.truncate(0, count)
        assert held <= max(count, 0) or held == len(self.text)
        del self.text[held:]
        self.fake.check(self.text)
        return held


KINDS = pytest.mark.parametrize("kind", list(Rollback))


@KINDS
def test_whatever_is_cut_the_memory_is_in_the_state_of_the_text(kind: Rollback) -> None:
    draw, engine = random.Random(5), Engine(kind)
    for _ in range(STEPS):
        if draw.random() < 0.6 and len(engine.text) < 90:
            count = draw.choice((1, 1, 2, 4, 8))
            tokens = [draw.randrange(1000) for _ in range(count)]
            certain = draw.choice((None, None, len(engine.text) // 2, len(engine.text) + 1))
            engine.decode(tokens, draw.randint(0, count), certain)
        elif draw.random() < 0.1:
            engine.memory.checkpoint(0)
        else:
            most = len(engine.text)
            engine.cut(draw.choice((0, most // 2, max(0, most - 2), max(0, most - 1), most)))
        engine.fake.check(engine.text)
        counts = engine.memory.checkpoint_counts(0)
        assert len(counts) <= MOST_CHECKPOINTS
        assert counts == sorted(set(counts)) and all(c <= len(engine.text) for c in counts)


@pytest.mark.parametrize("kind", [Rollback.WINDOW, Rollback.SNAPSHOTS, Rollback.CHECKPOINTS])
def test_a_rejection_costs_few_tokens_and_no_start_from_nothing(kind: Rollback) -> None:
    draw, engine = random.Random(7), Engine(kind)
    engine.decode(list(range(40)), 0)
    committed = list(range(40))
    for number in range(200):
        tokens = committed[len(engine.text) :]
        draft = [1000 + number * 10 + i for i in range(draw.randint(1, 6))]
        engine.decode([*tokens, 500 + number, *draft], 1 + len(draft))
        committed += [500 + number]
        accepted = draw.randint(0, len(draft))
        committed += draft[:accepted]
        engine.cut(len(committed))
        assert len(committed) - len(engine.text) <= MOST_REDONE + 8
        assert engine.text == committed[: len(engine.text)]
    assert engine.read_first < 200 // 2


@KINDS
def test_a_draft_comes_back_to_the_committed_text(kind: Rollback) -> None:
    engine = Engine(kind)
    engine.decode(list(range(20)), 1, certain=20)
    for token in range(100, 104):
        engine.decode([token], 1, certain=20)
    held = engine.cut(20)
    assert held == (0 if kind is Rollback.RESTART else 20)


@KINDS
@pytest.mark.parametrize("cut_to", [30, 27])
def test_what_a_copy_would_hold_is_known_without_asking_llama(
    kind: Rollback, cut_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(kind)
    engine.decode(list(range(20)), 1, certain=20)
    engine.decode(list(range(20, 30)), 1)
    held = engine.cut(cut_to)
    cut = {count for count in range(1, held) if engine.memory.can_copy(0, count)}

    def is_asked(sequence: int) -> int:
        raise AssertionError("a decode may be in flight")

    monkeypatch.setattr(engine.fake, "first_position", is_asked)
    for count in range(1, held):
        fitting = [each for each in engine.memory.checkpoint_counts(0) if each <= count]
        expected = count if count in cut else max(fitting, default=0)
        assert engine.memory.copied_count(0, count) == expected


def test_the_last_decode_is_taken_back_without_a_checkpoint_where_that_is_possible() -> None:
    for kind, counts in ((Rollback.WINDOW, []), (Rollback.SNAPSHOTS, []), (Rollback.FULL, [])):
        engine = Engine(kind)
        engine.decode([1, 2, 3], 0)
        engine.decode([4, 5, 6, 7], 4)
        assert engine.memory.checkpoint_counts(0) == counts
        assert engine.cut(4) == 4


def test_snapshots_are_good_for_one_cut_and_no_deeper_than_the_decode() -> None:
    engine = Engine(Rollback.SNAPSHOTS)
    engine.decode([1, 2, 3], 0)
    engine.decode([4], 1)
    engine.decode([5], 1)
    assert engine.cut(4) == 0  # the snapshot below is of an older decode
    engine.decode([1, 2, 3, 4], 4)
    assert engine.cut(3) == 3
    assert engine.cut(2) == 0


def test_deeper_drafts_than_there_are_snapshots_have_a_checkpoint() -> None:
    engine = Engine(Rollback.SNAPSHOTS)
    engine.decode([1, 2, 3], 0)
    engine.decode(list(range(10, 10 + SNAPSHOTS + 2)), SNAPSHOTS + 2)
    assert engine.memory.checkpoint_counts(0) == [3]
    assert engine.cut(4) == 3


def test_what_was_accepted_is_decoded_again_with_the_next_draft() -> None:
    engine = Engine(Rollback.CHECKPOINTS)
    engine.decode([1, 2, 3], 0)
    engine.decode([4, 5, 6], 3)
    assert engine.cut(5) == 3
    engine.decode([4, 5, 7, 8], 2)
    assert engine.memory.checkpoint_counts(0) == [3] and not engine.read_first
    assert engine.cut(6) == 3


def test_a_prompt_is_read_before_the_checkpoint_of_its_first_draft() -> None:
    engine = Engine(Rollback.CHECKPOINTS)
    engine.decode(list(range(50)), 3)
    assert engine.read_first == 1
    assert engine.cut(48) == 47


def test_what_is_certain_ends_at_the_first_wanted_row() -> None:
    assert certain_count(Chunk(0, 5, [1, 2, 3], 3)) == 6
    assert certain_count(Chunk(0, 5, [1, 2, 3], 0)) == 8
    assert certain_count(Chunk(0, 5, [1], 1, certain=2)) == 2


def test_a_state_that_llama_does_not_take_back_empties_the_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(Rollback.CHECKPOINTS)
    engine.decode([1, 2, 3], 0)
    engine.decode([4, 5], 2)
    monkeypatch.setattr(engine.fake, "restore", lambda sequence, saved: False)
    assert engine.cut(4) == 0


class Limited(FakeMemory):
    """Has memory for so many copies of a state at once."""

    copies = 0

    def save(self, sequence: int) -> list[int]:
        if self.copies == 0:
            raise MemoryError
        self.copies -= 1
        return super().save(sequence)


def test_without_memory_for_a_checkpoint_only_what_needs_one_fails() -> None:
    memory = RollbackMemory(Limited(Rollback.CHECKPOINTS, [1] * 300), Rollback.CHECKPOINTS, 1)
    memory.note(0, 300, 1)
    memory.checkpoint(0)
    memory.prepare(Chunk(0, 300, [1], 1))  # old enough for a checkpoint, which nothing needs
    assert memory.checkpoint_counts(0) == []
    with pytest.raises(DecodeFailed):
        memory.prepare(Chunk(0, 300, [1, 2, 3], 3))


def test_the_checkpoint_of_the_sequence_that_was_idle_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollback, "MOST_BYTES", 2 * 50)
    memory = RollbackMemory(FakeMemory(Rollback.CHECKPOINTS, [1] * 50), Rollback.CHECKPOINTS, 4)
    for sequence in (1, 0):
        memory.note(sequence, 50, 1)
        memory.checkpoint(sequence)
        memory.note_decoded()
    for _ in range(200):
        memory.note(2, 50, 1)
        memory.note_decoded()
    memory.checkpoint(2)
    assert [memory.checkpoint_counts(s) for s in range(3)] == [[50], [], [50]]
    memory.note(3, 50, 1)
    memory.checkpoint(3)
    assert [memory.checkpoint_counts(s) for s in range(4)] == [[], [], [50], [50]]
    memory.note(0, 50, 1)
    memory.checkpoint(0)  # all are in use
    assert [memory.checkpoint_counts(s) for s in range(4)] == [[50], [], [50], [50]]


def test_however_large_states_are_each_sequence_keeps_the_checkpoint_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollback, "MOST_BYTES", 0)
    fakes = [FakeMemory(Rollback.CHECKPOINTS) for _ in range(3)]

    class Sequences(FakeMemory):
        """Three sequences, each a memory of its own."""

        def cut(self, sequence: int, token_count: int) -> bool:
            return fakes[sequence].cut(0, token_count)

        def save(self, sequence: int) -> list[int]:
            return fakes[sequence].save(0)

        def restore(self, sequence: int, saved: list[int]) -> bool:
            return fakes[sequence].restore(0, saved)

    memory = RollbackMemory(Sequences(Rollback.CHECKPOINTS), Rollback.CHECKPOINTS, 3)
    text: list[int] = []
    for _ in range(3):
        for sequence, fake in enumerate(fakes):
            chunk = Chunk(sequence, len(text), [1] * 60, 60)
            memory.prepare(chunk)
            fake.decode(list(chunk.token_ids))
            memory.note(sequence, len(text) + 60, 60)
        for sequence in range(3):
            assert memory.truncate(sequence, len(text) + 1) == len(text)
            assert len(memory.checkpoint_counts(sequence)) <= 1
            fakes[sequence].decode([1] * 60)
            memory.note(sequence, len(text) + 60, 60)
        text += [1] * 60
