"""Proposes what followed the last one to four tokens, as llama.cpp's n-gram caches do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.ngram_cache import MOST_PAIRS, NgramCache, NgramDrafter
from outrider.drafters.source import Proposal, confidence

_DOUBT = 0.5
"""What a count is weighed against beside its n-gram's others, as if half a token had come too.

Of what followed 1, 2, 3 and 4 times and nothing else did, .62, .77, .85 and .89 stood in 12,000
tokens of Python after 32,768; this says .67, .80, .86 and .89.
"""


class NgramSource:
    """Proposes from the n-grams of the text itself, then of past texts, then of a large one.

    All of the text counts, n-grams across two appends too, unlike in llama-server, which feeds
    its caches the new tokens alone. The two other caches are read only, and may be shared and
    change between two calls; the static one holds n-grams of two tokens. A token takes about 4 us
    to append, so that a prompt of many thousands is better given in pieces, and 160 to 270 bytes.

    Without the two others it adds nothing to SuffixSource: of texts that repeat it predicts .75
    to .82 where that does .83 to .92, and the better of both no more (make bench-drafters).
    """

    reads_prompt = True

    def __init__(
        self,
        dynamic: NgramCache | None = None,
        static: NgramCache | None = None,
        most_pairs: int = MOST_PAIRS,
    ) -> None:
        """Begin with an empty text, of which at most so many pairs will be held."""
        self._drafter = NgramDrafter(dynamic, static, most_pairs)

    def append(self, token_ids: Sequence[int]) -> None:
        self._drafter.extend(token_ids)

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        guesses = self._drafter.draft(count, after)
        chances = (guess.seen / (guess.total + _DOUBT) for guess in guesses)
        return Proposal([guess.token_id for guess in guesses], bytes(map(confidence, chances)))
