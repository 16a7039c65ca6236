"""A prompt of the draft's own: the conversation in its template, in place of the text's prompt."""

from __future__ import annotations

from collections.abc import Sequence

from outrider import logs
from outrider.engine.model import Model


class OwnPromptReader:
    """Reads texts of which the draft has the prompt in other tokens, and all that follows as it is.

    The text's first `prompt_count` tokens are the prompt that `own_prompt` stands for.
    """

    def __init__(self, own_prompt: Sequence[int], prompt_count: int) -> None:
        self._own_prompt = own_prompt
        self._prompt_count = prompt_count
        self._line: Sequence[int] = ()  # of the last call
        self._own: list[int] = []  # and what it is to the draft, as long as it only grows

    def read(self, line: Sequence[int], base: int) -> list[int]:
        """Return a line as the draft reads it. The same list is the same line, or a longer one.

        What is returned is valid until the next call.
        """
        known = self._prompt_count + len(self._own) - len(self._own_prompt)
        if line is not self._line or len(line) < known:
            self._line, known = line, self._prompt_count
            self._own = list(self._own_prompt)
        self._own += line[known:]
        return self._own


def own_prompt_ids(model: Model, text: str, most: int) -> list[int]:
    """Return the tokens of a prompt of the draft's own; none where it cannot read it.

    That is one of more than `most` bytes, or of more tokens than fit. Control tokens in it are
    read, and BOS is there once. Raises EngineBusy as `tokenize` does.
    """
    if not text:
        return []
    description = model.describe()
    capacity, vocabulary = description.context, description.vocabulary
    if len(text.encode()) > most:
        return _too_long(capacity)
    ids = model.tokenize(text.encode(), False, True)
    if vocabulary.adds_bos and vocabulary.bos is not None and ids[:1] != [vocabulary.bos]:
        ids.insert(0, vocabulary.bos)
    return ids if len(ids) < capacity else _too_long(capacity)


def _too_long(capacity: int) -> list[int]:
    detail = "the conversation in its own template does not fit its context"
    logs.warning("outrider.draft", "target's tokens read", context=capacity, detail=detail)
    return []
