"""Keeps a sampler's state in step with a text that may be cut and continued meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.model import Sampler


class SamplerTracker:
    """Has a sampler for any text: state is kept for settled tokens, others are fed to a copy.

    A text that does not continue from the last one is fed anew from its start, so
    nothing is lost with a cache, a stream or a process.
    """

    def __init__(self, fresh: Sampler, prompt_count: int) -> None:
        self._fresh = fresh
        self._prompt_count = prompt_count
        self._settled, self._settled_text = fresh, list[int]()
        self._ahead, self._ahead_text = fresh, list[int]()

    def at(self, text: Sequence[int], settled_count: int) -> Sampler:
        """Return a sampler after `text`, of which the first tokens are settled.

        It is to be asked, and cloned by who wants to advance it. Raises
        InvalidRequest when the grammar does not allow the text.
        """
        if not self._fresh.has_state:
            return self._fresh
        text = list(text)
        if len(text) == settled_count:
            self._settle(text)
            return self._settled
        if len(self._ahead_text) < settled_count or not _starts_with(text, self._ahead_text):
            self._settle(text[:settled_count])
            self._ahead, self._ahead_text = self._settled.clone(), text[:settled_count]
        known, self._ahead_text = len(self._ahead_text), []  # an error leaves nothing half done
        self._feed(self._ahead, text, known)
        self._ahead_text = text
        return self._ahead

    def _settle(self, text: list[int]) -> None:
        if text == self._settled_text:
            return
        if not self._settled_text or not _starts_with(text, self._settled_text):
            self._settled, self._settled_text = self._fresh.clone(), []
        known, self._settled_text = len(self._settled_text), []
        self._feed(self._settled, text, known)
        self._settled_text = text

    def _feed(self, sampler: Sampler, text: Sequence[int], known: int) -> None:
        for i in range(known, len(text)):
            sampler.accept(text[i], i < self._prompt_count)


def _starts_with(text: list[int], start: list[int]) -> bool:
    return text[: len(start)] == start
