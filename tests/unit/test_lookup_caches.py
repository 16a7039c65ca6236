"""What generations share: only where it was asked for, in bounds, and whole in its file."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import lookup_caches
from orchestrator.config import MOST_SHARED_TOKENS, OrchestratorConfig
from orchestrator.lookup_caches import (
    MOST_SHARED_PAIRS,
    DynamicCache,
    SharedTexts,
    load_shared_texts,
)
from outrider.drafters.ngram_cache import NgramCache, pack
from outrider.drafters.ngram_file import load_cache, save_cache
from outrider.drafters.source import READ_AT_ONCE
from outrider.errors import InvalidConfig, NotFound
from outrider.rpc.server import ServerConfig
from outrider.v1 import common_pb2 as common
from tests.support.operations import lines_run
from tests.support.repeating import counted, repeating_tokens
from tests.support.services import eventually

WORDS = common.Vocabulary(digest=b"words", token_count=100)
OTHERS = common.Vocabulary(digest=b"others", token_count=100)

PROMPT, TEXT = [1, 2, 3, 4], [5, 6, 7, 8, 9, 10]


def content(cache: NgramCache) -> dict[bytes, dict[int, int]]:
    return {ngram: dict(counts) for ngram, counts in cache.items()}


def dynamic_at(path: Path) -> DynamicCache:
    return DynamicCache(path, NgramCache(MOST_SHARED_PAIRS))


@asynccontextmanager
async def started(texts: SharedTexts) -> AsyncIterator[SharedTexts]:
    texts.start()
    try:
        yield texts
    finally:
        await texts.stop()


def written(texts: SharedTexts, *many: Sequence[int], is_shared: bool = True) -> None:
    """Let generations without a prompt write texts, one after the other."""
    for each in many:
        texts.sources([], WORDS, is_shared)
        texts.note_text([], each, WORDS, is_shared)


def proposed(
    texts: SharedTexts,
    prompt: list[int],
    is_shared: bool = True,
    vocabulary: common.Vocabulary = WORDS,
) -> dict[str, list[int]]:
    """Return what each source says behind a prompt; n-grams say nothing where there are none."""
    found: dict[str, list[int]] = {"ngram": []}
    for name, source in texts.sources(prompt, vocabulary, is_shared).items():
        if name == "copy":
            continue  # it is of this text alone, as "suffix"
        if source.reads_prompt:
            source.append(prompt)
        found[name] = [*source.propose(3).token_ids]
    return found


# --- who sees what ---


def test_without_an_option_a_text_is_drafted_from_itself_alone() -> None:
    texts = SharedTexts()
    texts.start()
    written(texts, TEXT, TEXT)
    assert proposed(texts, TEXT[:3]) == {"suffix": [], "ngram": []}
    assert proposed(texts, TEXT + TEXT[:3])["suffix"] == [8, 9, 10]


async def test_another_text_is_drafted_from_those_that_are_over(tmp_path: Path) -> None:
    dynamic = dynamic_at(tmp_path / "a")
    async with started(SharedTexts(dynamic=dynamic, past_count=1000)) as texts:
        written(texts, TEXT, TEXT)
        await eventually(lambda: proposed(texts, TEXT[:3])["ngram"] != [])
        found = proposed(texts, TEXT[:3])
        assert found == {"suffix": [], "ngram": [8, 9, 10], "past": [8, 9, 10]}
        assert content(dynamic.cache) == {
            pack(ngram): {token: 2 * count for token, count in counts.items()}
            for ngram, counts in counted(TEXT).items()
        }


async def test_a_salt_of_its_own_neither_lends_nor_borrows(tmp_path: Path) -> None:
    static = NgramCache()
    static.put(pack([1, 2]), {3: 4})
    async with started(SharedTexts(static, dynamic_at(tmp_path / "a"), 1000)) as texts:
        written(texts, TEXT, TEXT, is_shared=False)
        written(texts, [20, 21, 22, 23], [20, 21, 22, 23])
        await eventually(lambda: proposed(texts, [20, 21, 22])["ngram"] != [])
        assert proposed(texts, TEXT[:3]) == {"suffix": [], "ngram": [], "past": []}
        assert proposed(texts, [20, 21, 22], is_shared=False) == {"suffix": [], "ngram": []}
        assert proposed(texts, [1, 2], is_shared=False)["ngram"] == [3], "the operator's own"


async def test_what_a_prompt_begins_with_is_counted_once(tmp_path: Path) -> None:
    """A chat's earlier turns are in every prompt of it."""
    dynamic = dynamic_at(tmp_path / "a")
    texts = SharedTexts(dynamic=dynamic, past_count=1000)
    chat = repeating_tokens(600, 1)
    for turn in range(10, 600, 60):
        texts.sources(chat[:turn], WORDS, True)
        texts.note_text(chat[:turn], chat[turn : turn + 20], WORDS, True)
    async with started(texts):
        pass
    last = 10 + 60 * 9 + 20
    assert content(dynamic.cache) == {
        pack(ngram): counts for ngram, counts in counted(chat[:last]).items()
    }


async def test_a_text_counts_each_time_that_it_is_written(tmp_path: Path) -> None:
    dynamic = dynamic_at(tmp_path / "a")
    texts = SharedTexts(dynamic=dynamic)
    for _ in range(3):
        texts.sources(PROMPT, WORDS, True)
        texts.note_text(PROMPT, TEXT, WORDS, True)
    async with started(texts):
        pass
    found = content(dynamic.cache)
    assert found[pack([2, 3])] == {4: 1}
    assert found[pack([4])] == {5: 3} and found[pack(TEXT[:4])] == {9: 3}


# --- vocabularies ---


async def test_another_vocabulary_gets_nothing_and_adds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dynamic = dynamic_at(tmp_path / "a")
    async with started(SharedTexts(dynamic=dynamic, past_count=1000)) as texts:
        written(texts, TEXT, TEXT)
        await eventually(lambda: proposed(texts, TEXT[:3])["ngram"] != [])
        before = content(dynamic.cache)
        of_others = proposed(texts, TEXT[:3], vocabulary=OTHERS)
        assert of_others == {"suffix": [], "ngram": [], "past": []}
        texts.note_text(TEXT, TEXT, OTHERS, True)
        texts.note_text(TEXT, TEXT, WORDS, True)  # of the target before: too late
        await asyncio.sleep(0.01)
        assert content(dynamic.cache) == before
        assert "lookup caches left out: the target has another vocabulary" in caplog.text
        assert proposed(texts, TEXT[:3])["ngram"] == [8, 9, 10], "the first one came back"


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_files_with_tokens_that_the_vocabulary_has_not_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_dynamic: bool
) -> None:
    cache = NgramCache()
    cache.put(pack([1, 2]), {3: 9, 100: 1})
    dynamic = DynamicCache(tmp_path / "a", cache) if is_dynamic else None
    texts = SharedTexts(None if is_dynamic else cache, dynamic)
    assert proposed(texts, [1, 2])["ngram"] == []
    assert "lookup caches left out" in caplog.text
    larger = common.Vocabulary(digest=b"larger", token_count=101)
    assert proposed(texts, [1, 2], vocabulary=larger)["ngram"] == [3]


# --- bounds ---


async def test_the_dynamic_cache_never_holds_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_caches, "MOST_SHARED_PAIRS", 500)
    path = tmp_path / "a"
    save_cache(NgramCache(), path)
    texts = load_shared_texts(config(lookup_cache_dynamic=path))
    for seed in range(20):
        written(texts, repeating_tokens(200, seed))
    async with started(texts):
        pass
    assert 400 < load_cache(path).pair_count <= 500


def test_texts_that_wait_are_bounded_and_the_oldest_is_not_counted(tmp_path: Path) -> None:
    dynamic = dynamic_at(tmp_path / "a")
    texts = SharedTexts(dynamic=dynamic)
    written(texts, *([i, i + 1] for i in range(0, 20, 2)))
    dynamic.count(1)
    written(texts, *([50, 51] for _ in range(60)))
    while dynamic.count(64):
        pass
    found = content(dynamic.cache)
    assert found[pack([50])] == {51: 60}
    assert pack([10]) not in found and found[pack([12])] == {13: 1}


def test_a_slice_takes_the_same_however_long_the_text_is(tmp_path: Path) -> None:
    dynamic = dynamic_at(tmp_path / "a")
    texts = SharedTexts(dynamic=dynamic, past_count=100_000)
    written(texts, repeating_tokens(5000, 1))
    assert max(lines_run(texts._index) for _ in range(100)) < READ_AT_ONCE * 300


# --- the file ---


async def test_the_file_is_saved_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    dynamic = dynamic_at(path)
    async with started(SharedTexts(dynamic=dynamic, save_seconds=0.02)) as texts:
        written(texts, TEXT)
        await eventually(path.exists)
        assert content(load_cache(path)) == content(dynamic.cache) != {}
        assert path.stat().st_mode & 0o777 == 0o600
        texts._save_seconds = 100.0
        written(texts, PROMPT)
    assert content(load_cache(path)) == content(dynamic.cache)
    assert pack(PROMPT[:3]) in content(dynamic.cache)


async def test_nothing_is_counted_and_nobody_waits_while_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly(*_: object) -> None:
        begun.set()
        assert may_end.wait(10)

    monkeypatch.setattr(lookup_caches, "save_cache", slowly)
    dynamic = dynamic_at(tmp_path / "a")
    async with started(SharedTexts(dynamic=dynamic, save_seconds=0.01)) as texts:
        written(texts, TEXT, TEXT)
        await eventually(begun.is_set)
        before = content(dynamic.cache)
        written(texts, PROMPT)
        assert proposed(texts, TEXT[:3])["ngram"] == [8, 9, 10]
        await asyncio.sleep(0.01)
        assert content(dynamic.cache) == before
        may_end.set()
        await eventually(lambda: content(dynamic.cache) != before)


@pytest.mark.parametrize("most", [0, 1, 19, 20, 27, 500, 8191, 8192, 8193, 20_000])
async def test_a_save_that_is_cut_leaves_the_old_file_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    path = tmp_path / "a"
    dynamic = dynamic_at(path)
    texts = SharedTexts(dynamic=dynamic)
    written(texts, TEXT)
    while dynamic.count(64):
        pass
    await dynamic.save()
    before = path.read_bytes()
    written(texts, repeating_tokens(1000, 1))
    while dynamic.count(64):
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        await dynamic.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
    assert "n-grams not saved" in caplog.text and not dynamic.is_saved
    await dynamic.save()
    assert content(load_cache(path)) == content(dynamic.cache)


KILLED = """
import asyncio, sys
from pathlib import Path
from orchestrator.lookup_caches import DynamicCache, SharedTexts
from outrider.drafters.ngram_file import load_cache
from outrider.v1 import common_pb2 as common
from tests.support.repeating import repeating_tokens
WORDS = common.Vocabulary(digest=b"words", token_count=100)
async def main():
    path = Path(sys.argv[1])
    texts = SharedTexts(dynamic=DynamicCache(path, load_cache(path)), save_seconds=0.001)
    texts.start()
    for seed in range(1_000_000):
        text = repeating_tokens(100, seed)
        texts.sources([], WORDS, True)
        texts.note_text([], text, WORDS, True)
        await asyncio.sleep(0.001)
asyncio.run(main())
"""


def test_a_kill_at_any_moment_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    """It saves all the time, so most of them are in the middle of a save."""
    path = tmp_path / "a"
    save_cache(NgramCache(), path)
    parts, sizes = 0, []
    for i in range(2):
        before = path.stat().st_ino
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
        end = time.monotonic() + 20
        while path.stat().st_ino == before and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.05 + 0.02 * i)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        sizes.append(load_cache(path).pair_count)
        parts = len([*tmp_path.iterdir()]) - 1
    assert sizes == sorted(sizes) and sizes[0] > 0
    assert parts <= 2, "what was being written is swept an hour later"


# --- options ---


def config(**options: Any) -> OrchestratorConfig:
    return OrchestratorConfig(server=ServerConfig(), targets=["127.0.0.1:1"], **options)


def test_a_dynamic_cache_that_is_missing_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    load_shared_texts(config(lookup_cache_dynamic=path))
    assert path.read_bytes() == b"" and path.stat().st_mode & 0o777 == 0o600


def test_what_was_saved_is_drafted_from_after_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cache = NgramCache()
    cache.update(TEXT * 2, 12)
    save_cache(cache, tmp_path / "a")
    texts = load_shared_texts(config(lookup_cache_dynamic=tmp_path / "a"))
    assert proposed(texts, TEXT[:3])["ngram"] == [8, 9, 10]
    assert "lookup cache loaded" in caplog.text


@pytest.mark.parametrize("option", ["lookup_cache_static", "lookup_cache_dynamic"])
def test_a_file_that_cannot_be_used_is_named_by_its_option(tmp_path: Path, option: str) -> None:
    name, path = option.replace("_", "-"), tmp_path / "a"
    cache = NgramCache()
    cache.put(pack([1, 2]), {3: 4})
    save_cache(cache, path)
    path.write_bytes(path.read_bytes() + b"abc")
    with pytest.raises(InvalidConfig, match=rf"^{name}: .*/a is damaged, .*: byte 28: 3 bytes"):
        load_shared_texts(config(**{option: path}))
    with pytest.raises(InvalidConfig, match=rf"^{name}: cannot read {tmp_path}: Is a directory"):
        load_shared_texts(config(**{option: tmp_path}))
    missing = tmp_path / "no" / "file"
    kind = NotFound if option.endswith("static") else InvalidConfig
    with pytest.raises(kind, match=rf"^{name}: .*{missing}"):
        load_shared_texts(config(**{option: missing}))


def test_past_texts_have_a_bound() -> None:
    assert config(share_past_texts=MOST_SHARED_TOKENS).share_past_texts
    for wrong in (-1, MOST_SHARED_TOKENS + 1):
        with pytest.raises(InvalidConfig, match="share_past_texts: must be in"):
            config(share_past_texts=wrong)


def test_a_read_only_file_is_no_hindrance_to_reading_it(tmp_path: Path) -> None:
    cache = NgramCache()
    cache.put(pack([1, 2]), {3: 4})
    save_cache(cache, tmp_path / "a")
    os.chmod(tmp_path / "a", 0o400)
    texts = load_shared_texts(config(lookup_cache_static=tmp_path / "a"))
    assert proposed(texts, [1, 2])["ngram"] == [3]
