"""The vocabulary of a model that llama.cpp holds: its texts, and tokenizing with it.

Everything here may be called from any thread, beside
a decode: llama.cpp only reads the vocabulary.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from outrider.engine.llama_library import ll
from outrider.engine.model import FimTokens, VocabularyDescription
from outrider.errors import Draining, EngineBusy

T = TypeVar("T")

_STACK_BYTES = 4 << 20
"""What a call needs apart from the text's length."""

_STACK_BYTES_PER_LETTER = 768
"""std::regex, which splits texts before many vocabularies, calls itself for every letter that it
matches. Measured with all pre-tokenizers of llama.cpp: 350 bytes at most (gcc 12, x86-64)."""

_stack_size = threading.Lock()  # held while threading.stack_size, which is the process's, is set


class Vocabulary:
    """The vocabulary of a loaded model. `close` it before the model is freed."""

    def __init__(self, model: Any) -> None:
        self.pointer = ll.llama_model_get_vocab(model)
        self.size: int = ll.llama_vocab_n_tokens(self.pointer)
        self._in_flight = 0  # calls that read the vocabulary in C
        self._closed = False  # no further call begins
        self._changed = threading.Condition()  # guards the two above

    def describe(self) -> VocabularyDescription:
        """Return what the two models of a pair must share."""
        vocab, count, known = self.pointer, self.size, self._known
        return VocabularyDescription(
            type=ll.llama_vocab_type(vocab),
            token_count=count,
            bos=known(ll.llama_vocab_bos(vocab)),
            eos=known(ll.llama_vocab_eos(vocab)),
            eot=known(ll.llama_vocab_eot(vocab)),
            adds_bos=ll.llama_vocab_get_add_bos(vocab),
            adds_eos=ll.llama_vocab_get_add_eos(vocab),
            end_token_ids=tuple(i for i in range(count) if ll.llama_vocab_is_eog(vocab, i)),
            fim=self._fim(),
        )

    def _known(self, token_id: int) -> int | None:
        return token_id if 0 <= token_id < self.size else None

    def _fim(self) -> FimTokens | None:
        """Return what it fills in by, as the file says or as llama.cpp knows the names."""
        vocab, known = self.pointer, self._known
        prefix = known(ll.llama_vocab_fim_pre(vocab))
        suffix = known(ll.llama_vocab_fim_suf(vocab))
        middle = known(ll.llama_vocab_fim_mid(vocab))
        if prefix is None or suffix is None or middle is None:
            return None
        repository, file = ll.llama_vocab_fim_rep(vocab), ll.llama_vocab_fim_sep(vocab)
        return FimTokens(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            repository=known(repository),
            file=known(file),
        )

    def texts(self) -> list[bytes]:
        """Return the bytes that each token adds to a text; control tokens add none."""
        return [self._text(token_id) for token_id in range(self.size)]

    def _text(self, token_id: int) -> bytes:
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = ll.llama_token_to_piece(self.pointer, token_id, buffer, room, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def names(self) -> list[bytes]:
        """Return the text that each token is stored under."""
        return [ll.llama_vocab_get_text(self.pointer, i) or b"" for i in range(self.size)]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text.

        Raises EngineBusy where there is no memory for the stack that a text of this length may
        need, and Draining once the vocabulary is closed.
        """
        stack_bytes = _STACK_BYTES + _STACK_BYTES_PER_LETTER * len(text)
        with self._open():
            return _call(lambda: self._tokenize(text, add_special, parse_special), stack_bytes)

    def _tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(text) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            count = ll.llama_tokenize(
                self.pointer, text, len(text), ids, room, add_special, parse_special
            )
            if count >= 0:
                return list(ids[:count])
            room = -count

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Keep the vocabulary from being freed."""
        with self._changed:
            if self._closed:
                raise Draining("the engine is stopping")
            self._in_flight += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse further texts and wait for those in flight."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._in_flight)


def _call(action: Callable[[], T], stack_bytes: int) -> T:
    """Return what an action returns that runs on a stack of its own.

    Memory is only used as far as the stack is.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(action())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="tokenize", daemon=True)
    with _stack_size:
        before = threading.stack_size(stack_bytes & ~0xFFFF)
        try:
            thread.start()
        except RuntimeError:
            raise EngineBusy(f"no memory for a stack of {stack_bytes} bytes") from None
        finally:
            threading.stack_size(before)
    return result.result()
