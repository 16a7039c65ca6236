"""Sources without a model beside a target: the same text whatever they propose, and sooner."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from orchestrator.sources import (
    Expected,
    Grammars,
    UsualTokens,
    sources_after_shift,
    sources_of,
)
from outrider.core.counts import Counts
from outrider.costs import CostTable
from outrider.drafters.copying import CopySource
from outrider.drafters.source import Proposal, Source
from outrider.drafters.suffix import SuffixSource
from outrider.speculation import DRAFTERS, Policy, Speculation
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_requests import read_request
from tests.support.simulation import Faults, Models, Result, Script, Simulation
from tests.support.thorough import THOROUGH

GPU = CostTable([(1, 0.0300), (64, 0.0552)])
CPU = CostTable([(1, 0.022), (2, 0.034), (4, 0.056), (8, 0.080), (16, 0.130), (64, 0.450)])
ROWS_FREE = CostTable([(1, 0.0300), (64, 0.0300)])
VOCABULARY = 32_000


def sources(prediction: Sequence[int], speculation: Speculation | None = None) -> dict[str, Source]:
    """Return those of one text by itself, and of what is expected of it."""
    of_texts: dict[str, Source] = {"suffix": SuffixSource(), "copy": CopySource()}
    return sources_of(speculation or Speculation(), Expected(prediction), of_texts)


def ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(100, VOCABULARY) for _ in range(count)]


def rewritten(dice: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Return a file with something before it, the file with a name exchanged, and the file."""
    file = ids(dice, 500)
    text, i = [], 0
    while i < len(file):
        count = dice.randrange(20, 45)
        text += [*file[i : i + count], 7]
        i += count + 1
    return [*ids(dice, 20), *file, *ids(dice, 5)], text, file


def prose(dice: random.Random, count: int = 300) -> list[int]:
    """Return tokens as frequent as words are: some come again, what follows them does not."""
    return [int(dice.paretovariate(0.7)) % VOCABULARY for _ in range(count)]


class Growing:
    """Knows a text, and is sure of it only once some tokens of it came."""

    reads_prompt = False

    def __init__(self, text: Sequence[int]) -> None:
        self._left = [*text]
        self._seen = 0

    def append(self, token_ids: Sequence[int]) -> None:
        del self._left[: len(token_ids)]
        self._seen += len(token_ids)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        token_ids = self._left[len(after) :][:count]
        return Proposal(token_ids, bytes([210 if self._seen < 6 else 250] * len(token_ids)))


class Hostile:
    """Proposes nonsense and is sure of it."""

    reads_prompt = False

    def append(self, token_ids: Sequence[int]) -> None:
        del token_ids

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        return Proposal([3 + len(after)] * count, b"\xff" * count)


def written(
    prompt: Sequence[int],
    text: Sequence[int],
    beside: Mapping[str, Source],
    costs: CostTable = CPU,
    *,
    round_trip: float = 0.0,
    has_draft: bool = False,
    acceptance: float = 0.0,
    speculation: Speculation | None = None,
) -> Result:
    """Return how a text was written, which is checked to be the one."""
    models = Models(
        costs=costs,
        draft_token=0.01,
        acceptance=acceptance,
        target_round_trip=round_trip,
        overhead=0.0015,
    )
    simulation = Simulation(
        models,
        speculation or Speculation(),
        tokens=len(text),
        seed=1,
        language=Script(prompt, text, 1, acceptance),
        sources=beside,
        has_draft=has_draft,
    )
    result = simulation.run()
    assert result.text == [*prompt, *text]
    return result


def anything(dice: random.Random) -> tuple[Simulation, list[int]]:
    """Return a generation with sources, of which some lie, in a world that none has thought of."""
    prompt, text, file = rewritten(dice)
    text = [*text[:60], *prose(dice, 40)]
    speculation = Speculation(
        policy=dice.choice([*Policy, Policy.MEASURED]),
        n_max=dice.choice([1, 3, 16]),
        run_ahead=dice.choice([None, None, True, False]),
    )
    prediction = dice.choice([[], file, text, prose(dice, 200)])
    beside = sources(prediction, speculation)
    if dice.random() < 0.3:
        beside["past"] = Hostile()
    acceptance = dice.choice([0.0, 0.5, 0.9])
    simulation = Simulation(
        Models(
            costs=dice.choice([GPU, CPU]),
            draft_token=dice.choice([0.001, 0.01, 0.1]),
            acceptance=acceptance,
            draft_round_trip=dice.choice([0.0, 0.02, 0.15]),
            target_round_trip=dice.choice([0.0, 0.0, 0.05]),
            overhead=0.001,
            takes_turns=dice.random() < 0.3,
            continues=dice.random() < 0.7,
        ),
        speculation,
        tokens=len(text),
        seed=dice.randrange(1000),
        language=Script(prompt, text, dice.randrange(1000), acceptance),
        sources=beside,
        has_draft=dice.random() < 0.6,
        faults=Faults(
            frame_loss=dice.choice([0.0, 0.2]),
            draft_deaths=dice.choice([0.0, 1.0]),
            target_deaths=dice.choice([0.0, 0.7]),
            evictions=dice.choice([0.0, 2.0]),
        ),
    )
    return simulation, [*prompt, *text]


@pytest.mark.parametrize("part", range(10 if THOROUGH else 2))
def test_the_text_is_the_targets_own_whatever_is_proposed(part: int) -> None:
    for seed in range(60 * part, 60 * (part + 1)):
        simulation, text = anything(random.Random(seed))
        result = simulation.run()
        assert result.text == text, seed
        assert result.stale_rows == 0, seed


@pytest.mark.parametrize("costs", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("round_trip", [0.0, 0.05])
def test_a_rewritten_file_is_written_sooner(costs: CostTable, round_trip: float) -> None:
    prompt, text, file = rewritten(random.Random(5))
    plain = written(prompt, text, {}, costs, round_trip=round_trip)
    suffix = written(prompt, text, sources([]), costs, round_trip=round_trip)
    both = written(prompt, text, sources(file), costs, round_trip=round_trip)
    assert suffix.seconds < plain.seconds / 1.3
    assert both.seconds < 1.05 * suffix.seconds


@pytest.mark.parametrize("costs", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("round_trip", [0.0, 0.05])
@pytest.mark.parametrize("prediction", ["none", "wrong"])
def test_prose_is_not_written_later(costs: CostTable, round_trip: float, prediction: str) -> None:
    dice = random.Random(6)
    prompt, text = prose(dice), prose(dice)
    expected = prose(dice) if prediction == "wrong" else []
    plain = written(prompt, text, {}, costs, round_trip=round_trip)
    beside = written(prompt, text, sources(expected), costs, round_trip=round_trip)
    assert beside.seconds < plain.seconds / 0.97


def test_no_round_is_long_enough_for_other_kernels_unless_that_is_asked_for() -> None:
    prompt, text, _ = rewritten(random.Random(5))
    known = written(prompt, text, sources(text), ROWS_FREE)
    assert max(known.counts.drafted_by_round) == 59
    assert Speculation(n_max=64).local_n_max == 64


def test_the_guide_says_of_every_drafter_what_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    chapter = page.partition("## Who drafts")[2].partition("If you pin a length")[0]
    assert [name for name in DRAFTERS if f"`{name}`" not in chapter] == []


@pytest.mark.parametrize("most", [1, 15, 16, 17])
def test_no_source_drafts_more_than_was_asked_for_whichever_number_that_is(most: int) -> None:
    prompt, text, _ = rewritten(random.Random(5))
    options = messages.SpeculativeOptions(n_max=most)
    request = messages.GenerateRequest(prompt_text="a", speculative=options)
    asked = read_request(request).speculation(Speculation())
    drafted = written(prompt, text, sources(text), ROWS_FREE, speculation=asked).counts
    assert max(drafted.drafted_by_round) == most
    # The orchestrator's own limit binds as well, and a request has the last word.
    usual = messages.GenerateRequest(prompt_text="a")
    assert read_request(usual).speculation(Speculation(n_max=most)).local_n_max == most
    assert read_request(request).speculation(Speculation(n_max=5)).local_n_max == most


def test_a_line_that_has_become_surer_is_verified_in_larger_pieces() -> None:
    text = ids(random.Random(11), 59)
    result = written(ids(random.Random(12), 20), text, {"past": Growing(text)})
    assert result.decodes < 12


def test_a_source_that_lies_is_found_out() -> None:
    dice = random.Random(7)
    prompt, text = prose(dice), prose(dice)
    plain = written(prompt, text, {})
    lied = written(prompt, text, {"past": Hostile()})
    assert lied.seconds < plain.seconds / 0.9
    assert lied.counts.sources["past"].accepted == 0
    assert lied.counts.sources["past"].decided > 100  # scored, though hardly ever drafted
    assert lied.counts.sources["past"].drafted < 100


def test_prose_then_copied_code_is_better_with_both_than_with_either() -> None:
    dice = random.Random(8)
    code = ids(dice, 300)
    prompt, text = [*prose(dice, 50), *code], [*prose(dice, 150), *code[40:240], *prose(dice, 100)]
    arms = {
        "model": written(prompt, text, {}, GPU, has_draft=True, acceptance=0.8),
        "suffix": written(prompt, text, sources([]), GPU),
        "both": written(prompt, text, sources([]), GPU, has_draft=True, acceptance=0.8),
    }
    assert arms["both"].seconds < min(arms["model"].seconds, arms["suffix"].seconds)
    counts = arms["both"].counts.sources
    assert counts["suffix"].accepted + counts["copy"].accepted > 100
    assert counts["model"].accepted > 50


def test_every_drafted_token_is_of_a_source() -> None:
    prompt, text, file = rewritten(random.Random(9))
    counts = written(prompt, text, sources(file), has_draft=True, acceptance=0.7).counts
    assert sum(each.drafted for each in counts.sources.values()) == counts.drafted
    assert sum(each.accepted for each in counts.sources.values()) == counts.accepted


def test_a_stalled_prompt_is_read_in_pieces() -> None:
    """A prompt of many thousands of tokens is not read at once."""
    read: list[int] = []

    class Counting(SuffixSource):
        def append(self, token_ids: Sequence[int]) -> None:
            read.append(len(token_ids))
            super().append(token_ids)

    prompt = ids(random.Random(10), 2000)
    written(prompt, prompt[500:560], {"suffix": Counting()})
    assert max(read) <= 256
    assert sum(read) == len(prompt) + 60


def test_a_text_that_shifted_keeps_its_prediction() -> None:
    before = sources([1, 2, 3])
    fresh = sources([1, 2, 3])
    after = sources_after_shift(before, fresh)
    assert after["prediction"] is before["prediction"]
    assert after["suffix"] is fresh["suffix"]


def test_drafters_that_are_not_named_are_not_made() -> None:
    only = Speculation(drafters=frozenset({"prediction"}))
    assert list(sources([1, 2], only)) == ["prediction"]
    assert not sources([1, 2], Speculation(enabled=False))
    assert not only.drafts


def test_counts_of_sources_add_up() -> None:
    counts, more = Counts(), Counts()
    counts.note_sources(["model", "suffix", "suffix"], 2)
    more.note_sources(["suffix"], 1)
    counts.add(more)
    assert (counts.sources["suffix"].drafted, counts.sources["suffix"].accepted) == (3, 2)
    assert counts.sources["model"].accepted == 1


OBJECT = r'root ::= "{\"name\": " ("1" | "2") ", \"address\": " ("3" | "4") "}"'
TEXTS = [b"", b"{", b'"', b"name", b"address", b'": ', b"1", b"3", b", ", b"}", b"na", b"me"]


def test_usual_tokens_are_the_longest_ones() -> None:
    cut = UsualTokens(TEXTS)
    assert cut(b'{"name": ') == [1, 2, 3, 5]
    assert cut(b"?") == []


def test_what_a_grammar_forces_is_drafted() -> None:
    """After the first value the rest of the object's keys needs no round of its own."""
    text = [1, 2, 3, 5, 6, 8, 2, 4, 5, 7, 9]
    grammars = Grammars()
    forcing = grammars.read(OBJECT, TEXTS)
    assert forcing is not None
    expected = Expected(forcing=forcing)
    beside = sources_of(Speculation(), expected, {}, [3])
    plain = written([3], text, {}, GPU)
    forced = written([3], text, beside, GPU)
    assert forced.counts.rounds <= plain.counts.rounds / 2
    assert forced.counts.sources["forced"].accepted >= 5


def test_a_grammar_is_read_once_and_one_that_cannot_be_read_forces_nothing() -> None:
    grammars = Grammars()
    one, other = grammars.read(OBJECT, TEXTS), grammars.read(OBJECT, TEXTS)
    assert one is not None and other is not None
    assert one.states is other.states
    assert grammars.read("root ::= (", TEXTS) is None
    assert grammars.read("", TEXTS) is None
