"""Translates between the tokens of a draft and of a target that have other vocabularies. Pure.

Source of the two methods: Timor et al. 2502.05202. Token-level intersection restricts the draft's
distribution to the tokens whose texts the target has too; at string level the draft's text is
encoded with the target's tokens. Either way what a draft sends is in ids of the target, and is a
guess like any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outrider.distribution import Distribution
from outrider.text_encoder import TextEncoder

ABSENT = -1
"""Stands in arrays of ids for a token that the other vocabulary does not have."""

LEAST_SHARE = 0.9
"""The share of the draft's probability mass, and of the tokens of a text in the target's encoding,
that shared tokens must have for the token level. Where the target has longer tokens than the
draft, the string level had 1.2 to 2 times as many accepted: docs/decisions/0027.
"""

_LONGEST_RUN = 256
"""Bytes that are encoded together at most; in a longer run without a break one is made."""

_LOOKS_SPECIAL = re.compile(
    rb"<(\||\xef\xbd\x9c).*\1>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL
)
"""What llama.cpp takes for a control token when it converts a model, by its text. The second bar
is a wide one, DeepSeek's."""

_BYTE_NAME = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
_BYTE_PAIR_ENCODING = 2  # llama.cpp's number of the vocabulary type


class Level(Enum):
    """At which level a draft's tokens are translated."""

    TOKENS = "token level"
    STRINGS = "string level"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """A vocabulary as the other side knows it. Special ids that it lacks are None."""

    texts: Sequence[bytes]
    """What each token adds to a text; special tokens add nothing."""
    names: Sequence[bytes]
    type: int  # llama.cpp's number
    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    adds_bos: bool = False
    end_token_ids: tuple[int, ...] = ()

    @property
    def byte_token_ids(self) -> list[int]:
        """The tokens that stand for a byte where no other does."""
        return [i for i, name in enumerate(self.names) if _BYTE_NAME.fullmatch(name)]

    def encoder(self) -> TextEncoder:
        """Return what encodes text with these tokens."""
        return TextEncoder(self.texts, self.byte_token_ids, self.type == _BYTE_PAIR_ENCODING)


class Translation:
    """Which tokens of a draft are which of a target.

    Tokens are the same where they add the same bytes to a text. Special tokens are where they have
    the same role (BOS, EOS, EOT) or, without a role, the same name. A token that was added to a
    vocabulary may be special in one and text in the other: then the one's name is the other's text.
    """

    def __init__(self, draft: TokenTable, target: TokenTable) -> None:
        self.draft = draft
        self.target = target
        self.draft_encoder = draft.encoder()
        self.target_encoder = target.encoder()
        """What encodes text with the target's tokens."""
        self.to_target = _Counterparts(self).found()
        """Of each of the draft's ids the target's, or ABSENT: int32[draft vocabulary]."""
        self.to_draft = np.full(len(target.texts), ABSENT, np.int32)
        """Of each of the target's ids the draft's, or ABSENT: int32[target vocabulary]."""
        shared = np.flatnonzero(self.to_target != ABSENT)
        # The last one that is written stays: that of the lowest id, and no byte token.
        bytes_last = np.isin(shared, draft.byte_token_ids)
        order = np.lexsort((-shared, ~bytes_last))
        self.to_draft[self.to_target[shared[order]]] = shared[order]
        self._is_absent = self.to_target == ABSENT
        # Of a logit, for each token of the draft: a third of the time of a mask.
        self._most = np.where(self._is_absent, np.float32(-np.inf), np.float32(np.inf))
        self._merges = len(shared) != np.count_nonzero(self.to_draft != ABSENT)
        self.shared_count = len(shared)
        """Tokens of the draft that the target has too."""
        self.apart = self._stand_apart()
        """The target's ids that no text of the draft's has pieces of: what they are to the draft is
        read by itself, if it has them at all."""
        self.written_apart = self._written_apart()
        """The same of the draft's ids, for the target."""

    def _stand_apart(self) -> frozenset[int]:
        draft, found = self.draft, set()
        for token_id, own in enumerate(self.to_draft.tolist()):
            if text := self.target.texts[token_id]:
                is_lost = own == ABSENT and _LOOKS_SPECIAL.fullmatch(text)
                its = draft.texts[own] if own != ABSENT else text
                is_added = own != ABSENT and not (its and self.draft_encoder.is_made(its))
                if is_lost or is_added:
                    found.add(token_id)
        return frozenset(found)

    def _written_apart(self) -> frozenset[int]:
        its, encoder = self.target.texts, self.target_encoder
        return frozenset(
            own
            for own, token_id in enumerate(self.to_target.tolist())
            if self.draft.texts[own]
            and token_id != ABSENT
            and not (its[token_id] and encoder.is_made(its[token_id]))
        )

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """The target's ids that end a text for either of the two."""
        its = [int(self.to_target[i]) for i in self.draft.end_token_ids]
        return frozenset({*self.target.end_token_ids, *its} - {ABSENT})

    @cached_property
    def noise_ids(self) -> NDArray[np.int32]:
        """What keys the noise of the draft's tokens at string level: int32[draft vocabulary].

        The target's ids, where it has the token, and others beyond its vocabulary; all distinct.
        """
        ids = np.arange(len(self.draft.texts), dtype=np.int32)
        back = self.to_draft[np.maximum(self.to_target, 0)]
        is_shared = ~self._is_absent & (back == ids)
        return np.where(is_shared, self.to_target, ids + np.int32(len(self.target.texts)))

    def restricted(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the draft's row of logits with nothing left of tokens that the target lacks."""
        return np.minimum(row, self._most[: len(row)])

    def in_target(self, distribution: Distribution) -> Distribution:
        """Return a distribution of the draft's ids as one of the target's.

        Q'(t) = Q(all tokens that are t) / Q(all that the target has); what it lacks is left out.
        Raises ValueError where nothing is left.
        """
        ids = self.to_target[distribution.token_ids]
        is_shared = ids != ABSENT
        ids, weights = ids[is_shared], distribution.weights[is_shared]
        if not weights.any():
            raise ValueError("the target has none of these tokens")
        if self._merges:
            sums = np.bincount(ids, weights)
            ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
            weights = sums[ids]
        return Distribution(ids, weights)

    def shared_mass(self, probabilities: NDArray[np.float64]) -> float:
        """Return the mass of shared tokens, of probabilities over the draft's ids."""
        return float(probabilities[~self._is_absent[: len(probabilities)]].sum())

    def covered_share(self, text: bytes) -> float:
        """Return the share of a text's tokens, in the target's encoding, that the draft has."""
        ids = self.target_encoder.encode(text)
        return float(np.mean(self.to_draft[ids] != ABSENT)) if ids else 0.0

    def reader(
        self, prompt_count: int = 0, most: float = math.inf, own_prompt: Sequence[int] = ()
    ) -> TranslatedReader:
        """Return what reads one session's texts, whose prompt has so many tokens.

        It stops after more than `most` of the draft's tokens: nobody can use a longer text. With an
        `own_prompt`, the draft's own ids, it reads that in place of the text's.
        """
        return TranslatedReader(self, prompt_count, most, own_prompt)


class _Counterparts:
    """Finds which of a target's tokens each of a draft's is."""

    def __init__(self, its: Translation) -> None:
        self._draft, self._target = its.draft, its.target
        self._own, self._encoder = its.draft_encoder, its.target_encoder
        target = self._target
        self._silent = {
            name: i for i, name in enumerate(target.names) if name and not target.texts[i]
        }
        self._roles = _roles(its.draft, target)

    def found(self) -> NDArray[np.int32]:
        """Return the target's ids by the draft's."""
        found = [self._id(token_id) for token_id in range(len(self._draft.texts))]
        return np.array([ABSENT if its is None else its for its in found], np.int32)

    def _id(self, token_id: int) -> int | None:
        if token_id in self._roles:
            return self._roles[token_id]
        text = self._draft.texts[token_id]
        name = text or self._draft.names[token_id]
        its, silent = self._encoder.id_of(name) if name else None, self._silent.get(name)
        if text:
            return silent if its is None and not self._own.is_made(text) else its
        if silent is None and its is not None and not self._encoder.is_made(name):
            return its
        return silent


def _roles(draft: TokenTable, target: TokenTable) -> dict[int, int | None]:
    """Return what the draft's tokens with a role are; what ends a text ends it on either side."""
    eos = target.eos if target.eos is not None else target.eot
    eot = target.eot if target.eot is not None else target.eos
    roles = ((draft.bos, target.bos), (draft.eot, eot), (draft.eos, eos))
    return {its: other for its, other in roles if its is not None}


class TranslatedReader:
    """Reads one session's text in the draft's tokens.

    The text up to the line's base is encoded anew, as the draft would meet it in a text of its own;
    what the draft wrote after it stays in the tokens that it wrote. It is kept from one call to the
    next, so that a text that grows costs what is new of it.
    """

    def __init__(
        self,
        translation: Translation,
        prompt_count: int,
        most: float,
        own_prompt: Sequence[int] = (),
    ) -> None:
        self._translation = translation
        self._prompt_count = prompt_count  # no token goes across the prompt's end
        self._most = most
        self._text: list[int] = []  # the last text, in the target's ids, as far as it was read
        self._ids: list[int] = list(own_prompt)  # the same in the draft's
        # Where encoding can begin again: tokens of the text and of the draft's before, rising.
        # The first is never taken away, so that a prompt of the draft's own stays.
        start = (prompt_count, len(own_prompt)) if own_prompt else (0, 0)
        self._breaks: list[tuple[int, int]] = [start]
        # The line of the last call, and what its first tokens are, for any tokens after them.
        self._line: Sequence[int] = ()
        self._base = -1
        self._count = 0  # of these tokens
        self._own: list[int] = []

    def read(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line of the target's ids, which started over at `base`, in the draft's.

        The same list with the same base has to be the same line, or one that continues it: what was
        read of it is not looked at again. What is returned is valid until the next call.
        """
        if line is not self._line or base != self._base or len(line) < self._count:
            self._own = list(self._read_text(list(line[:base])))
            self._line, self._base, self._count = line, base, min(base, len(line))
        rest = line[self._count :]
        absent = self._translation.to_draft
        settled = len(rest)
        while settled and absent[rest[settled - 1]] == ABSENT:
            settled -= 1  # what follows may be encoded together with it
        self._own += self.own_ids(rest[:settled])
        self._count += settled
        return self._own + self.own_ids(rest[settled:]) if rest[settled:] else self._own

    def own_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return tokens that the draft wrote; those that it does not have by their texts."""
        translation, ids, run = self._translation, list[int](), b""
        for token_id in token_ids:
            own = int(translation.to_draft[token_id])
            if own == ABSENT and token_id not in translation.apart:
                run += translation.target.texts[token_id]
                continue
            if run:
                ids += translation.draft_encoder.encode(run)
                run = b""
            if own != ABSENT:
                ids.append(own)
        return ids + translation.draft_encoder.encode(run) if run else ids

    def _read_text(self, text: list[int]) -> list[int]:
        known = len(self._text)
        if text[:known] != self._text:
            pairs = zip(text, self._text, strict=False)
            known = next((i for i, (new, old) in enumerate(pairs) if new != old), len(text))
        if known == len(text) == len(self._text):
            return self._ids
        # A break is there by what comes after it, too.
        while len(self._breaks) > 1 and self._breaks[-1][0] >= known:
            self._breaks.pop()
        start, count = self._breaks[-1]
        self._text, self._ids = text, self._ids[:count]
        self._encode_from(start)
        return self._ids

    def _encode_from(self, start: int) -> None:
        """Encode the text from a break on, and note where others are."""
        its, texts = self._translation, self._translation.target.texts
        encoder, ids, run = its.draft_encoder, self._ids, b""

        def end_run(index: int) -> None:
            nonlocal run
            ids.extend(encoder.encode(run))
            run = b""
            if index > self._breaks[-1][0]:
                self._breaks.append((index, len(ids)))

        for index in range(start, len(self._text)):
            if len(ids) > self._most:
                del self._text[index:]
                return
            token_id = self._text[index]
            text = b"" if token_id in its.apart else texts[token_id]
            is_apart = run and not encoder.may_join(run, text)
            if is_apart or not text or index == self._prompt_count or len(run) > _LONGEST_RUN:
                end_run(index)
            if not text:
                ids.extend(self._special(index, token_id))
                end_run(index + 1)
            elif not index:
                ids.extend(self._opening)
            run += text
        ids.extend(encoder.encode(run))

    def _special(self, index: int, token_id: int) -> Sequence[int]:
        """Return the draft's token for a special one of the target's; nothing without any."""
        its = self._translation
        if not index and token_id == its.target.bos:
            return self._opening
        own = int(its.to_draft[token_id])
        return [*(() if index else self._opening), *([own] if own != ABSENT else ())]

    @property
    def _opening(self) -> Sequence[int]:
        """What the draft's texts begin with."""
        draft = self._translation.draft
        return [draft.bos] if draft.adds_bos and draft.bos is not None else []
