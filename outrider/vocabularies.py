"""What differs between a draft's vocabulary and a target's, in counts and examples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.translation import ABSENT, Translation

_EXAMPLES = 4  # differing tokens that a message names
_LONGEST_EXAMPLE = 24  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyComparison:
    """Two vocabularies beside each other. Tokens are equal that add the same bytes to a text."""

    target_count: int
    draft_count: int
    shared_count: int
    """Tokens of the draft that the target has too."""
    same_id_count: int
    """Of them, those under the same id."""
    silent_count: int
    """Tokens of the draft that add nothing to a text: special ones, padding."""
    byte_count: int
    """Tokens of the draft that stand for one byte of what no other token has."""
    only_draft: Sequence[str] = ()
    """Examples of tokens that the target lacks, those of the lowest ids."""
    only_target: Sequence[str] = ()
    moved: Sequence[str] = ()
    """Examples of tokens that are equal under another id."""

    def sentence(self) -> str:
        """Return it in one line."""
        said = (
            f"of the draft's {self.draft_count} tokens the target, which has {self.target_count}, "
            f"has {self.shared_count}, {self.same_id_count} of them under the same id"
        )
        for what, examples in (
            ("only the draft has", self.only_draft),
            ("only the target has", self.only_target),
            ("under other ids", self.moved),
        ):
            if examples:
                said += f"; {what} {', '.join(examples)}"
        return said


def compare(translation: Translation) -> VocabularyComparison:
    """Return what two vocabularies have in common and what not."""
    draft, target, to_target = translation.draft, translation.target, translation.to_target
    is_shared = to_target != ABSENT
    is_same = to_target == np.arange(len(to_target))
    texts = draft.texts
    return VocabularyComparison(
        target_count=len(target.texts),
        draft_count=len(texts),
        shared_count=translation.shared_count,
        same_id_count=int(np.count_nonzero(is_same)),
        silent_count=sum(not text for text in texts),
        byte_count=len(draft.byte_token_ids),
        only_draft=_examples(texts, np.flatnonzero(~is_shared)),
        only_target=_examples(target.texts, np.flatnonzero(translation.to_draft == ABSENT)),
        moved=_examples(texts, np.flatnonzero(is_shared & ~is_same)),
    )


def _examples(texts: Sequence[bytes], ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    """Return some of the tokens that are text; single bytes last, which say little."""
    said = [texts[i] for i in ids.tolist() if texts[i]]
    said.sort(key=lambda text: len(text) < 2)
    return [repr(text.decode("utf-8", "replace")[:_LONGEST_EXAMPLE]) for text in said[:_EXAMPLES]]
