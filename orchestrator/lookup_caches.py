"""What the generations of an orchestrator share, where its operator asks for it.

That is n-gram caches in files of llama.cpp's, one of a large text and one of past texts, and past
texts as they are. What is shared lets a caller learn, by how fast a text comes, what another one
wrote: so nothing is without an option, and of a request with a salt of its own nothing ever is.

The event loop owns all of it. What takes long is done there in slices of a few milliseconds,
and files are written by a thread, while nothing is counted.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.config import OrchestratorConfig
from outrider import logs
from outrider.drafters.copying import CopySource
from outrider.drafters.ngram_cache import LONGEST, NO_BOUND, NgramCache, pack
from outrider.drafters.ngram_file import load_cache, save_cache
from outrider.drafters.ngram_source import NgramSource
from outrider.drafters.source import READ_AT_ONCE, Source
from outrider.drafters.suffix import TAIL, PastSource, PastTexts, SuffixSource
from outrider.errors import InvalidConfig, InvalidRequest, NotFound
from outrider.v1 import common_pb2 as common

MOST_SHARED_PAIRS = 1 << 18
"""Pairs of an n-gram and a follower in the dynamic cache: 60 MB, or 160,000 tokens of code."""

SAVE_SECONDS = 300.0
"""s; between two saves, each of half a second for a full cache (`_NAP_SECONDS`): a kill loses no
more."""

_MODE = 0o600  # its n-grams are pieces of what people wrote
_NAP_SECONDS = 0.0005
"""s; of the thread that saves a file, a thousand times for a full cache: with shorter ones it keeps
the interpreter for up to 5 ms at a time."""
_MOST_WAITING = 64  # texts that were not counted yet; then the oldest is not
_MOST_BEGINNINGS = 32  # of the last texts, by which a chat's earlier turns are known


class DynamicCache:
    """The n-grams of past texts, the file that they are saved in, and texts not counted yet."""

    def __init__(self, path: Path, cache: NgramCache) -> None:
        self.path = path
        self.cache = cache
        self.is_saved = True
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque(maxlen=_MOST_WAITING)
        self._at = 0  # tokens of the first of them that are counted

    def add(self, tail: bytes, token_ids: Sequence[int]) -> None:
        """Take in what stands after a packed tail. It is found once `count` has come to it."""
        if len(self._waiting) == _MOST_WAITING:
            self._at = 0
        self._waiting.append((tail, token_ids))

    def count(self, count: int) -> bool:
        """Count at most so many waiting tokens; return whether there were any."""
        if not self._waiting:
            return False
        tail, token_ids = self._waiting[0]
        end = self._at + count
        tail = self.cache.count(tail, token_ids[self._at : end])
        self._waiting[0], self._at = (tail, token_ids), end
        if end >= len(token_ids):
            self._waiting.popleft()
            self._at = 0
        self.is_saved = False
        return True

    async def save(self) -> None:
        """Write the file in a thread; what cannot be written is logged, and not lost."""
        if self.is_saved:
            return
        self.is_saved = True
        try:
            await asyncio.to_thread(save_cache, self.cache, self.path, _MODE, _let_others_run)
        except InvalidConfig as error:
            self.is_saved = False
            logs.warning("outrider.orchestrator", "n-grams not saved", detail=str(error))
        else:
            pairs = self.cache.pair_count
            logs.event("outrider.orchestrator", "n-grams saved", file=str(self.path), pairs=pairs)


def _let_others_run() -> None:
    """Give the event loop its turn; a thread that only computes keeps it for 5 ms at a time."""
    time.sleep(_NAP_SECONDS)


class SharedTexts:
    """Makes the sources of generations, and takes in their texts when they are over.

    `start` it in the event loop, and `stop` it once the last text is over. The files belong to
    the first vocabulary that is seen, if their tokens fit into it: nothing says whose they are.
    For another one they are left out, and past texts begin anew.
    """

    def __init__(
        self,
        static: NgramCache | None = None,
        dynamic: DynamicCache | None = None,
        past_count: int = 0,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        """Share what is given, and the last `past_count` tokens of past texts; 0: none."""
        self._static, self._dynamic, self._past_count = static, dynamic, past_count
        self._save_seconds = save_seconds
        self._past: PastTexts | None = None
        self._beginnings: deque[bytes] = deque(maxlen=_MOST_BEGINNINGS)
        self._vocabulary = b""  # of which tokens are now, by digest
        self._owner = b""  # whose tokens the files hold
        self._highest = max(map(_highest, self._caches), default=-1)  # token that may be proposed
        self._news = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def _caches(self) -> list[NgramCache]:
        caches = (self._static, self._dynamic.cache if self._dynamic else None)
        return [cache for cache in caches if cache is not None]

    # --- generations ---

    def sources(
        self,
        prompt: Sequence[int],
        vocabulary: common.Vocabulary,
        is_shared: bool,
        asks_for_ngrams: bool = False,
    ) -> dict[str, Source]:
        """Return the sources of a generation by name, "ngram" and "past" among them if there is.

        The text's own n-grams add nothing to "suffix": without a cache "ngram" is only there for a
        request that asks for it.

        To all but "past" the prompt has still to be appended, as all that follows; that one
        begins after it. Without `is_shared` none of it comes from a text of another caller.
        """
        self._take_up(vocabulary)
        static = self._static if self._owner == self._vocabulary else None
        dynamic = self._shared_dynamic if is_shared else None
        found: dict[str, Source] = {"suffix": SuffixSource(), "copy": CopySource()}
        if dynamic or static or asks_for_ngrams:
            found["ngram"] = NgramSource(dynamic.cache if dynamic else None, static)
        if is_shared and self._past is not None:
            found["past"] = PastSource(self._past, prompt)
        return found

    def note_text(
        self,
        prompt: Sequence[int],
        text: Sequence[int],
        vocabulary: common.Vocabulary,
        is_shared: bool,
    ) -> None:
        """Take in a text that is over, unless it belongs to its caller alone.

        As far as the prompt begins like one of the last texts it is known: a chat's earlier
        turns, or what many prompts begin with. A text counts each time that it is written.
        """
        dynamic, past = self._shared_dynamic, self._past
        if not is_shared or vocabulary.digest != self._vocabulary or not (dynamic or past):
            return
        whole = array("i", [*prompt, *text])
        packed = whole.tobytes()
        known = max((_shared_count(packed, each) for each in self._beginnings), default=0)
        known = min(known, len(prompt))
        self._beginnings.append(packed)
        if past is not None:
            past.add(whole[max(0, known - TAIL) :])
        if dynamic is not None:
            dynamic.add(pack(whole[max(0, known - LONGEST) : known]), whole[known:])
        self._news.set()

    @property
    def _shared_dynamic(self) -> DynamicCache | None:
        return self._dynamic if self._owner == self._vocabulary else None

    def _take_up(self, vocabulary: common.Vocabulary) -> None:
        """Be ready for the tokens of a vocabulary, and leave out what is of another one."""
        if vocabulary.digest == self._vocabulary:
            return
        self._vocabulary = vocabulary.digest
        self._past = PastTexts(self._past_count) if self._past_count else None
        self._beginnings.clear()
        if not self._owner and self._highest < vocabulary.token_count:
            self._owner = vocabulary.digest
        if self._caches and self._owner != self._vocabulary:
            logs.warning(
                "outrider.orchestrator",
                "lookup caches left out: the target has another vocabulary",
                highest_token=self._highest,
                token_count=vocabulary.token_count,
            )

    # --- beside them ---

    def start(self) -> None:
        """Begin to count what was written, and to save it now and then."""
        if self._dynamic is not None or self._past_count:
            self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Count what is left and save it."""
        self._stopping = True
        self._news.set()
        if self._task is not None:
            await self._task

    async def _keep(self) -> None:
        clock, dynamic = asyncio.get_running_loop().time, self._dynamic
        due = clock() + self._save_seconds
        while True:
            if dynamic is not None and clock() >= due:
                await dynamic.save()
                due = clock() + self._save_seconds
            if self._index():
                await asyncio.sleep(0.0)
            elif self._stopping:
                break
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due if dynamic is not None else None):
                        await self._news.wait()
                self._news.clear()
        if dynamic is not None:
            await dynamic.save()

    def _index(self) -> bool:
        """Make a slice of what was written known; return whether there was any."""
        if self._past is not None and self._past.waiting_count:
            self._past.index(READ_AT_ONCE)
            return True
        return self._dynamic is not None and self._dynamic.count(READ_AT_ONCE)


def _highest(cache: NgramCache) -> int:
    """Return the highest token that followed an n-gram; -1 for an empty cache."""
    return max((max(counts) for _, counts in cache.items()), default=-1)


def _shared_count(one: bytes, other: bytes) -> int:
    """Return how many packed tokens two texts begin with alike."""
    least, most = 0, min(len(one), len(other)) // 4
    while least < most:
        middle = (least + most + 1) // 2
        if one[4 * least : 4 * middle] == other[4 * least : 4 * middle]:
            least = middle
        else:
            most = middle - 1
    return least


# --- files ---


def load_shared_texts(config: OrchestratorConfig) -> SharedTexts:
    """Return what the options ask for; a dynamic cache that is missing is made.

    Raises InvalidConfig or NotFound, by the option's name, for a file that cannot be read, is
    damaged, or cannot be made.
    """
    static = dynamic = None
    try:
        option = "lookup-cache-static"
        if config.lookup_cache_static is not None:
            static = _load(config.lookup_cache_static)
        option = "lookup-cache-dynamic"
        if config.lookup_cache_dynamic is not None:
            dynamic = _load_dynamic(config.lookup_cache_dynamic)
    except InvalidRequest as error:
        raise error.named(option) from None
    return SharedTexts(static, dynamic, config.share_past_texts)


def _load(path: Path, most_pairs: int = NO_BOUND) -> NgramCache:
    cache = load_cache(path, most_pairs=most_pairs)
    pairs = cache.pair_count
    logs.event("outrider.orchestrator", "lookup cache loaded", file=str(path), pairs=pairs)
    return cache


def _load_dynamic(path: Path) -> DynamicCache:
    try:
        return DynamicCache(path, _load(path, MOST_SHARED_PAIRS))
    except NotFound:
        cache = NgramCache(MOST_SHARED_PAIRS)
    save_cache(cache, path, _MODE)
    return DynamicCache(path, cache)
