"""Lets our drafts draft for vLLM, as a custom proposer of its own; vLLM itself is not imported.

vLLM finds the class by its name:

    OUTRIDER_VLLM_DRAFT=HOST:50061 vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "outrider_vllm.DraftProposer",
          "num_speculative_tokens": 5}'

It runs inside vLLM's loop, so nothing that a draft does may raise there: then nothing is proposed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider import logs
from outrider.errors import InvalidConfig
from outrider.messages import MAX_DRAFT
from outrider.rpc.channel import read_address
from outrider.rpc.security import ClientSecurity
from outrider_vllm.remote_drafting import RemoteDrafting

ADDRESS = "OUTRIDER_VLLM_DRAFT"
TOKEN_FILE = "OUTRIDER_VLLM_TOKEN_FILE"
TLS_CA = "OUTRIDER_VLLM_TLS_CA"
TLS_CERT = "OUTRIDER_VLLM_TLS_CERT"
TLS_KEY = "OUTRIDER_VLLM_TLS_KEY"
WAIT = "OUTRIDER_VLLM_WAIT_MS"

_WAIT_MS = 50.0
_LONGEST_WAIT_MS = 10_000.0
_GRACE_SECONDS = 0.25  # for the other thread to answer, once the time is up
_FRUITLESS = 4
"""Waits in a row that brought nothing, after which nothing is waited for"""
_PAUSE_SECONDS = 1.0
"""for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says. vLLM hands its own settings to a proposer, and no others."""

    address: str
    security: ClientSecurity
    wait_seconds: float = _WAIT_MS / 1e3

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Return the settings. Raises InvalidConfig."""
        address = environment.get(ADDRESS, "")
        if not address:
            raise InvalidConfig(ADDRESS, "must be the HOST:PORT of a draft service")
        read_address(ADDRESS, address)

        def path(name: str) -> Path | None:
            return Path(environment[name]) if environment.get(name) else None

        try:
            wait_ms = float(environment.get(WAIT) or _WAIT_MS)
        except ValueError:
            wait_ms = -1.0
        if not 0.0 <= wait_ms <= _LONGEST_WAIT_MS:
            raise InvalidConfig(WAIT, f"must be in [0, {_LONGEST_WAIT_MS:.0f}] milliseconds")
        security = ClientSecurity(
            token_file=path(TOKEN_FILE),
            tls_ca=path(TLS_CA),
            tls_cert=path(TLS_CERT),
            tls_key=path(TLS_KEY),
        )
        return cls(address=address, security=security, wait_seconds=wait_ms / 1e3)


class DraftProposer:
    """What vLLM calls after every step, for all of its requests together.

    A step waits for a draft at most `OUTRIDER_VLLM_WAIT_MS` (50 ms). The draft writes on while vLLM
    verifies, so that the next step usually finds its tokens there. Proposals are greedy: vLLM's own
    rejection sampler takes each for certain, which leaves its distribution as it is.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Raises InvalidConfig for an environment that names no draft; one may be away."""
        self._settings = Settings.read(os.environ)
        self._count = min(MAX_DRAFT, int(vllm_config.speculative_config.num_speculative_tokens))
        self._most = int(vllm_config.model_config.max_model_len)
        vocabulary = int(vllm_config.model_config.get_vocab_size())
        sessions = int(vllm_config.scheduler_config.max_num_seqs)
        self._drafting = RemoteDrafting(
            self._settings.address, self._settings.security, vocabulary, self._most, sessions
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="outrider-drafts", daemon=True)
        self._thread.start()
        self._fruitless = 0  # waits in a row that brought nothing
        self._paused_until = 0.0
        self._failures: set[str] = set()  # that were said; each once

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return draft tokens for each request of a step, none where there are none.

        `sampled_token_ids` has what each request was given in this step, nothing where it reads its
        prompt; `num_tokens_no_spec` is int[requests at most] and `token_ids_cpu` int[requests at
        most, max_model_len], the texts with what was given. Never raises.
        """
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # of any kind: vLLM continues without a draft
            if (kind := type(error).__name__) not in self._failures:
                self._failures.add(kind)
                logs.internal_error("outrider.vllm", error)
            return [[] for _ in sampled_token_ids] if isinstance(sampled_token_ids, list) else []

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: the model is in another process."""

    def dummy_run(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no graph to capture."""

    def close(self) -> None:
        """Close every stream and end the thread; nothing is proposed any more."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._drafting.close(), self._loop).result(10.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._drafting.start)
        self._loop.run_forever()
        self._loop.close()

    def _propose(
        self, sampled: Sequence[Sequence[int]], counts: Any, tokens: Any
    ) -> list[list[int]]:
        proposals: list[list[int]] = [[] for _ in sampled]
        texts = {
            row: tokens[row, : int(counts[row])].tolist()
            for row, given in enumerate(sampled)
            if len(given) and 0 < int(counts[row]) < self._most
        }
        if not texts or not self._drafting.is_ready:
            return proposals
        now = time.monotonic()
        wait = self._settings.wait_seconds if now >= self._paused_until else 0.0
        asked = self._drafting.draft(texts, self._count, wait)
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            drafted = future.result(wait + _GRACE_SECONDS)
        except TimeoutError:
            future.cancel()
            drafted = {}
        self._note_wait(wait > 0.0, any(drafted.values()))
        for row, token_ids in drafted.items():
            proposals[row] = token_ids[: self._most - len(texts[row])]
        return proposals

    def _note_wait(self, waited: bool, is_fruitful: bool) -> None:
        """A draft that is always late is not waited for, only now and then."""
        if is_fruitful:
            self._fruitless = 0
        elif waited:
            self._fruitless += 1
            if self._fruitless >= _FRUITLESS:
                self._fruitless = _FRUITLESS - 1  # one more wait, then a pause again
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
