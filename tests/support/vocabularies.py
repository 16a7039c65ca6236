"""Small vocabularies that share all, some or none of their tokens' texts."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.translation import TokenTable


def table(*texts: bytes, first: int = 0) -> TokenTable:
    """Return a vocabulary of BOS, EOS and these texts; `first` texts come before the two."""
    names = [*texts[:first], b"<s>", b"</s>", *texts[first:]]
    silent: Sequence[bytes] = (b"", b"")
    return TokenTable(
        texts=[*texts[:first], *silent, *texts[first:]],
        names=names,
        type=1,
        bos=first,
        eos=first + 1,
        adds_bos=True,
        end_token_ids=(first + 1,),
    )


AB_AND_BA = table(b"a", b"b", b"ab"), table(b"a", b"b", b"ba")
"""They share a and b."""

DISJOINT = table(b"a", b"b"), table(b"aa", b"ab", b"ba", b"bb")
"""They share no text."""

REORDERED = table(b"a", b"b", b"c"), table(b"c", b"a", b"b", first=2)
"""They share all, under other ids."""
