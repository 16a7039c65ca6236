"""Follows grammars through the tokens of a vocabulary. The only importer of llguidance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from outrider.errors import InvalidRequest
from outrider.grammar.lark import write_lark
from outrider.grammar.rules import Grammar

# Bounds of one mask, .2 s at the most for 150,000 tokens, and of the memory that a grammar takes.
_LIMITS = LLParserLimits(
    max_items_in_row=1024,
    step_max_items=100_000,
    step_lexer_fuel=200_000,
    max_lexer_states=25_000,
    verbose_errors=False,
)
_NO_TEXT = {0x00, 0xFF}
"""Bytes that no text of a grammar holds; to llguidance the second marks a special token."""


class _Texts:
    """What llguidance asks of a tokenizer. The end of texts is one more token."""

    bos_token_id = None

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.tokens = [b"" if _NO_TEXT & set(text) else text for text in texts] + [b""]
        self.eos_token_id = len(texts)

    def __call__(self, text: bytes) -> list[int]:
        return []  # only texts that a grammar forces would be tokenized


class GrammarVocabulary:
    """The texts of a vocabulary as a tree. To make it takes about 5 us a token."""

    def __init__(self, texts: Sequence[bytes], is_end: NDArray[np.bool_]) -> None:
        """Take the text of every token, empty where there is none, and which tokens are ends."""
        self.is_end = is_end
        self.size = len(texts)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Texts(texts)))

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """Return the place before a text. Raises InvalidRequest for what is too complex."""
        lark = LLMatcher.grammar_from_lark(write_lark(grammar))
        return GrammarMatcher(self, LLMatcher(self._tokenizer, lark, log_level=0, limits=_LIMITS))


class GrammarMatcher:
    """A grammar and the place in it that a text has come to.

    What is too complex to follow raises InvalidRequest, from then on with every call.
    """

    def __init__(self, vocabulary: GrammarVocabulary, matcher: LLMatcher) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._check()

    @property
    def can_end(self) -> bool:
        """Whether the text so far is one of the grammar's."""
        can_end = bool(self._matcher.is_accepting())
        self._check()
        return can_end

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens may come next: bool[vocabulary]."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        bits = np.unpackbits(words, count=self._vocabulary.size, bitorder="little")
        allowed: NDArray[np.bool_] = bits.view(np.bool_)
        allowed[self._vocabulary.is_end] = self.can_end
        return allowed

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return whether it is allowed. The end of a text changes nothing."""
        if self._vocabulary.is_end[token_id]:
            return self.can_end
        accepted = bool(self._matcher.try_consume_tokens([token_id]))
        self._check()
        return accepted

    def clone(self) -> GrammarMatcher:
        """Return a copy that advances by itself."""
        return GrammarMatcher(self._vocabulary, self._matcher.deep_copy())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0].partition(";")[0]
            raise InvalidRequest("grammar", f"too complex to follow: {reason[:100]}")
