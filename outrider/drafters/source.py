"""What proposes tokens without a model, and how its proposals are scored. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens after a text, and for each how sure its source is that it stands if those before do.

    A confidence is 255 times that chance, one byte as in the draft's frames.
    """

    token_ids: Sequence[int] = ()
    confidences: bytes = b""


READ_AT_ONCE = 256
"""Tokens of a text that sources read before others have their turn: 1 to 4 ms."""

NOTHING = Proposal()


def confidence(chance: float) -> int:
    """Return a chance as a byte, in [0, 255]."""
    return min(255, max(0, int(255 * chance)))


class Source(Protocol):
    """Follows one text and proposes what comes next.

    Asking it changes nothing that a
    later answer depends on, so it may be asked in every round, or in none.
    """

    reads_prompt: bool
    """Whether the prompt is appended to it as all else is; else it is made with what it needs."""

    def append(self, token_ids: Sequence[int]) -> None:
        """Take in what was committed after the text; committed text only grows."""
        ...

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        """Return at most `count` tokens after the text followed by `after`.

        `after` is what another source proposes there, so that this one continues where it ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decided:
    """The confidences of proposed tokens whose fate is known; the first `accepted` stood.

    Censored: at most one did not stand, the last, since nothing is known of what followed it.
    """

    confidences: bytes = b""
    accepted: int = 0


class Scored:
    """A source whose every proposal is compared with the text that comes, used or not.

    Each position of the text counts once at most: for the newest proposal that was made before it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.decided_count = 0  # tokens, of all proposals
        self.accepted_count = 0
        self._open = NOTHING  # the newest proposal, from the text's end on, as far as it stands

    def append(self, token_ids: Sequence[int]) -> Decided:
        """Let the source take in committed tokens; return what they decide."""
        self.source.append(token_ids)
        proposed, confidences = self._open.token_ids, self._open.confidences
        both = min(len(token_ids), len(proposed))
        accepted = next((i for i in range(both) if token_ids[i] != proposed[i]), both)
        is_over = accepted < both or both == len(proposed)
        self._open = NOTHING if is_over else Proposal(proposed[both:], confidences[both:])
        decided = Decided(confidences[: min(accepted + 1, both)], accepted)
        self.decided_count += len(decided.confidences)
        self.accepted_count += accepted
        return decided

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        """Ask the source; what it says after tokens that are not committed is not scored."""
        proposal = self.source.propose(count, after)
        if not after:
            self._open = proposal
        return proposal
