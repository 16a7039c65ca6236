"""Lets llama.cpp follow grammars, beside our own matcher, in a process that it may kill.

A program: `python -m tests.engine.follow_grammars MODEL SEED` reads grammars as a JSON list and
prints a line for each before and after: its number, and what came of it. Only tokens of one byte
are tried: of longer ones llama.cpp goes through every way that they could be split.
"""

from __future__ import annotations

import ctypes
import json
import random
import resource
import sys
from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

import outrider.engine.llama  # noqa: F401  (sets llama.cpp's environment)
from outrider.engine.grammar_matcher import GrammarMatcher, GrammarVocabulary
from outrider.grammar.gbnf import read_grammar

import llama_cpp as ll  # isort: skip

MEMORY = 1 << 30
STEPS = 12


class LlamaVocabulary:
    """The tokens of a model, without its weights."""

    def __init__(self, path: Path) -> None:
        params = ll.llama_model_default_params()
        params.vocab_only = True
        self._model = ll.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = ll.llama_model_get_vocab(self._model)
        self.ids = range(ll.llama_vocab_n_tokens(self.vocab))
        self.texts = [self._text(token_id) for token_id in self.ids]
        self.ends = {i for i in self.ids if ll.llama_vocab_is_eog(self.vocab, i)}
        # llama.cpp takes these for the text of their names.
        self.control = {i for i in self.ids if ll.llama_vocab_is_control(self.vocab, i)}
        is_end = np.array([i in self.ends for i in self.ids])
        self._ours = GrammarVocabulary(self.texts, is_end)

    def matcher(self, grammar: str) -> GrammarMatcher:
        """Return our own matcher of the same tokens."""
        return self._ours.matcher(read_grammar(grammar))

    def _text(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        size = ll.llama_token_to_piece(self.vocab, token_id, buffer, len(buffer), 0, False)
        return buffer.raw[:size]


class LlamaGrammar:
    """llama.cpp's own sampler of a grammar."""

    _FIELDS = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, vocabulary: LlamaVocabulary, text: str) -> None:
        self._sampler = ll.llama_sampler_init_grammar(vocabulary.vocab, text.encode(), b"root")
        self.accepted = bool(self._sampler)

    def allowed(self, ids: Sequence[int]) -> set[int]:
        table = np.zeros(len(ids), self._FIELDS)
        table["id"] = ids
        pointer = table.ctypes.data_as(ll.llama_token_data_p)
        array = ll.llama_token_data_array(pointer, len(ids), -1, False)
        ll.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return set(table["id"][np.isfinite(table["logit"])].tolist())

    def accept(self, token_id: int) -> None:
        ll.llama_sampler_accept(self._sampler, token_id)

    def close(self) -> None:
        ll.llama_sampler_free(self._sampler)


def allowed(matcher: GrammarMatcher, ids: Iterable[int]) -> set[int]:
    """Return the tokens that our matcher allows."""
    return {*np.flatnonzero(matcher.allowed()).tolist()} & {*ids}


def may_be_text(begun: bytes) -> bool:
    """Return whether bytes can become UTF-8, which llama.cpp does not look at closely."""
    for tail in (b"", b"\x80", b"\xbf", b"\xa0\x80", b"\x80\x80", b"\x90\x80\x80", b"\x80\x80\x80"):
        try:
            (begun + tail).decode()
            return True
        except UnicodeDecodeError:
            pass
    return False


def ends_in_a_character(begun: bytes) -> bool:
    """Return whether bytes end with the first of a character's."""
    return len(utf_8_decode(begun, "replace", False)[0].encode()) < len(begun)


def differences(
    vocabulary: LlamaVocabulary, begun: bytes, theirs: set[int], ours: set[int]
) -> set[int]:
    """Return the tokens about which they disagree without a reason, behind a text's bytes.

    Where a class is negated, llama.cpp refuses the first bytes of any character that it excludes.
    """
    texts = vocabulary.texts
    no_text = {
        i for i in theirs - ours if i in vocabulary.control or not may_be_text(begun + texts[i])
    }
    parts = {i for i in ours - theirs if ends_in_a_character(begun + texts[i])}
    return (theirs ^ ours) - no_text - parts


def follow(vocabulary: LlamaVocabulary, text: str, choose: random.Random) -> str:
    """Walk through a grammar at random; return what came of it."""
    grammar = LlamaGrammar(vocabulary, text)
    if not grammar.accepted:
        return "refused"
    ids = [i for i in vocabulary.ids if len(vocabulary.texts[i]) == 1 or i in vocabulary.ends]
    theirs = grammar.allowed(ids)
    matcher = vocabulary.matcher(text)
    written = b""
    try:
        for _ in range(STEPS):
            ours = allowed(matcher, ids)
            wrong = differences(vocabulary, written, theirs, ours)
            if wrong:
                return f"differs in {sorted(vocabulary.texts[i] for i in wrong)}"
            tokens = sorted(ours & theirs - vocabulary.ends)
            if not tokens:
                break
            token_id = choose.choice(tokens)
            grammar.accept(token_id)
            assert matcher.accept(token_id)
            written += vocabulary.texts[token_id]
            theirs = grammar.allowed(ids)
    finally:
        grammar.close()
    return "followed"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = LlamaVocabulary(Path(sys.argv[1]))
    for number, text in enumerate(json.load(sys.stdin)):
        print(number, "begun", flush=True)
        print(
            number, follow(vocabulary, text, random.Random(int(sys.argv[2]) + number)), flush=True
        )


if __name__ == "__main__":
    main()
