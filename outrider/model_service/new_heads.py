"""Lets a running target have the head that takes its head's place on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from outrider import logs
from outrider.engine.host import EngineHost
from outrider.engine.model import Model
from outrider.engine.own_draft import OwnDraft
from outrider.errors import Draining
from outrider.file_values import FileState, state_of
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import load_own_head
from outrider.model_service.servicer import ModelService

if TYPE_CHECKING:
    from outrider.engine.llama import LlamaModel

_LOOK_SECONDS = 2.0
"""s; between two looks at the file. The second one that finds it the same takes it: who does not
replace a file by renaming another may still be writing it."""


class HeadFile:
    """The file of a target's head, which may come, and be replaced, while the target runs."""

    def __init__(self, config: ModelConfig, known: FileState = None) -> None:
        """`known` is the file whose head the target was loaded with; None: with none."""
        self._config = config
        self._known = self._seen = known

    async def watch(self, host: EngineHost, servicer: ModelService) -> None:
        """Look again and again, and let the service say what drafts."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            draft = await asyncio.to_thread(self.look, host)
            if draft is not None:
                servicer.set_own_draft(draft)

    def look(self, host: EngineHost) -> OwnDraft | None:
        """Let a target draft with the file's head where that is new; None: it is not, or no good.

        What is no good is one line in the log, and the head before stays.
        """
        state = state_of(self._config.model)
        is_written, self._seen = state == self._seen, state
        if state in (None, self._known) or not is_written:
            return None
        self._known = state
        begin = time.perf_counter()
        try:
            draft = host.replace_draft(self._load)
        except Draining:
            return None
        except Exception as error:  # of any kind: the head before stays
            logs.warning("outrider.target", "new head not taken", detail=str(error))
            return None
        logs.event(
            "outrider.target",
            "new head taken",
            file=str(self._config.model),
            head=draft.head_kind and draft.head_kind.value,
            bytes=draft.weight_bytes,
            token_ms=round(1e3 * draft.costs.token, 3),
            seconds=round(time.perf_counter() - begin, 2),
        )
        return draft

    def _load(self, model: Model) -> Callable[[], OwnDraft]:
        return load_own_head(cast("LlamaModel", model), self._config)
