"""What happened in a generation, counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest


@dataclass(slots=True)
class SourceCounts:
    """What became of what one source proposed. Tokens, but for `seconds`."""

    drafted: int = 0  # verified by the target
    accepted: int = 0  # and of them, those that were accepted
    decided: int = 0  # proposed, drafted or not, and compared with the text; the first that differs
    agreed: int = 0  # and of them, those that agree with it: what it would have had accepted
    seconds: float = 0.0  # that it took

    def add(self, more: SourceCounts) -> None:
        """Count what happened in another text, or in a later part of the same."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(more, each.name))


@dataclass(slots=True)
class Counts:
    """What happened so far. `drafted` and `accepted` are the sums of the lists beside them."""

    rounds: int = 0  # verified, the prompt's and those without a draft included
    drafted_rounds: int = 0  # those with a draft
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)  # 0 is the draft's first token
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_round: list[int] = field(default_factory=list)  # only rounds with a draft
    drafted_by_round: list[int] = field(default_factory=list)
    cached: int = 0  # tokens of the prompt that the target held
    draft_faults: int = 0  # streams lost, text not held, answers too late
    target_faults: int = 0  # streams lost, text not held
    sources: dict[str, SourceCounts] = field(default_factory=dict)  # by name
    misses: int = 0  # of a draft that wrote runner-up lines
    foreseen: int = 0  # and of them, those after which the text continued with such a line

    def note_miss(self, foreseen: bool) -> None:
        """Count a token in which a draft that wrote runner-up lines differed from the text."""
        self.misses += 1
        self.foreseen += foreseen

    def note_draft(self, drafted: int, accepted: int, rounds: int = 1) -> None:
        """Count one verified draft, or several rounds without any."""
        self.rounds += rounds
        if not drafted:
            return
        self.drafted_rounds += 1
        self.drafted_by_round.append(drafted)
        self.accepted_by_round.append(accepted)
        self.drafted += drafted
        self.accepted += accepted
        for counts, count in (
            (self.drafted_by_position, drafted),
            (self.accepted_by_position, accepted),
        ):
            counts.extend([0] * (drafted - len(counts)))
            for i in range(count):
                counts[i] += 1

    def note_sources(self, names: Sequence[str], accepted: int) -> None:
        """Count who proposed the tokens of a verified draft, of which the first stood."""
        for i, name in enumerate(names):
            source = self.sources.setdefault(name, SourceCounts())
            source.drafted += 1
            source.accepted += i < accepted

    def note_compared(self, name: str, decided: int, agreed: int) -> None:
        """Count proposed tokens that were compared with the text, of which so many agree."""
        source = self.sources.setdefault(name, SourceCounts())
        source.decided += decided
        source.agreed += agreed

    def add(self, more: Counts) -> None:
        """Count what happened in a later part of the same completion."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(more, each.name)
            if each.name == "sources":
                for name, counts in theirs.items():
                    mine.setdefault(name, SourceCounts()).add(counts)
            elif each.name.endswith("_by_round"):
                mine += theirs
            elif isinstance(mine, list):
                pairs = zip_longest(mine, theirs, fillvalue=0)
                setattr(self, each.name, [a + b for a, b in pairs])
            else:
                setattr(self, each.name, mine + theirs)

    def forget_accepted(self, kept: int, names: Sequence[str], back: int = 1) -> None:
        """Take back the accepted tokens from `kept` on of a draft, proposed by these sources.

        It is the last one that was counted, or the one `back` from the end.
        """
        noted = len(names)
        self.accepted -= noted - kept
        for name in names[kept:]:
            self.sources[name].accepted -= 1
        if noted > kept:
            self.accepted_by_round[-back] = kept
        for i in range(kept, noted):
            self.accepted_by_position[i] -= 1
