"""Files of n-gram caches are llama.cpp's, and a bad one is an error that says where."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.drafters import ngram_file
from outrider.drafters.ngram_cache import NgramCache, pack, unpack
from outrider.drafters.ngram_file import load_cache, save_cache
from outrider.drafters.ngram_format import DamagedCache, decode, encode
from outrider.errors import InvalidConfig, NotFound
from tests.support.repeating import repeating_tokens


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def cache_of(history: list[int]) -> NgramCache:
    cache = NgramCache()
    cache.update(history, len(history))
    return cache


def content(cache: NgramCache) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    return {unpack(ngram): list(counts.items()) for ngram, counts in cache.items()}


def test_the_bytes_are_four_tokens_the_followers_and_their_counts() -> None:
    cache = NgramCache()
    cache.put(pack([7, 8]), {9: 2, 10: 1})
    cache.put(pack([1, 2, 3, 4]), {5: 1})
    expected = words(7, 8, -1, -1, 2, 9, 2, 10, 1) + words(1, 2, 3, 4, 1, 5, 1)
    assert b"".join(encode(cache)) == expected
    assert content(decode(expected)) == content(cache)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    cache = cache_of(repeating_tokens(2000, 1))
    save_cache(cache, tmp_path / "a.bin")
    loaded = load_cache(tmp_path / "a.bin")
    assert content(loaded) == content(cache) and loaded.pair_count == cache.pair_count
    save_cache(NgramCache(), tmp_path / "empty.bin")
    assert content(load_cache(tmp_path / "empty.bin")) == {}


def test_of_what_stands_twice_the_first_counts_as_in_llama_cpp() -> None:
    twice = words(7, -1, -1, -1, 2, 9, 2, 9, 5) + words(7, -1, -1, -1, 1, 3, 1)
    assert content(decode(twice)) == {(7,): [(9, 2)]}


GOOD = words(7, 8, -1, -1, 1, 9, 2)


@pytest.mark.parametrize(
    ("damaged", "offset", "reason"),
    [
        (GOOD + words(1, 2), 28, "8 bytes, where an n-gram has at least 20"),
        (GOOD + b"x", 28, "1 bytes"),
        (GOOD + words(-1, -1, -1, -1, 1, 9, 2), 28, "no n-gram: -1, -1, -1, -1"),
        (GOOD + words(7, -1, 8, -1, 1, 9, 2), 28, "no n-gram: 7, -1, 8, -1"),
        (GOOD + words(7, -2, -1, -1, 1, 9, 2), 28, "no n-gram"),
        (GOOD + words(7, -1, -1, -1, 0, 9, 2), 44, "0 followers, where 1 to 1 can be"),
        (GOOD + words(7, -1, -1, -1, -5, 9, 2), 44, "-5 followers"),
        (GOOD + words(7, -1, -1, -1, 2**31 - 1, 9, 2), 44, "2147483647 followers, where 1 to 1"),
        (GOOD + words(7, -1, -1, -1, 1, -9, 2), 48, "token -9"),
        (GOOD + words(7, -1, -1, -1, 1, 9, 0), 52, "a count of 0"),
        (GOOD + words(7, -1, -1, -1, 2, 9, 1, 10, -3), 60, "a count of -3"),
        (GOOD + words(7, -1, -1, -1, 1, 320, 1), 48, "token 320; the vocabulary has 320 tokens"),
        (GOOD + words(7, 400, -1, -1, 1, 9, 1), 32, "token 400; the vocabulary has 320 tokens"),
    ],
)
def test_damage_is_named_with_its_offset(
    tmp_path: Path, damaged: bytes, offset: int, reason: str
) -> None:
    with pytest.raises(DamagedCache, match=reason) as found:
        decode(damaged, 320)
    assert found.value.offset == offset
    path = tmp_path / "bad.bin"
    path.write_bytes(damaged)
    with pytest.raises(InvalidConfig, match=f"bad.bin is damaged, .*: byte {offset}: {reason}"):
        load_cache(path, 320)


def test_mutated_bytes_are_read_or_refused_and_fill_no_more_room_than_they_have() -> None:
    pick = random.Random(1)
    good = b"".join(encode(cache_of(repeating_tokens(60, 2))))
    refused = 0
    for _ in range(3000):
        mutated = bytearray(good[: pick.randrange(400)] if pick.random() < 0.9 else b"")
        for _ in range(pick.randrange(4)):
            if mutated:
                mutated[pick.randrange(len(mutated))] = pick.choice((0, 1, 127, 128, 255))
        mutated += pick.randbytes(pick.choice((0, 0, 0, 4, 50)))
        try:
            cache = decode(bytes(mutated))
        except DamagedCache as error:
            refused += 1
            assert 0 <= error.offset <= len(mutated)
        else:
            assert 20 * len(cache) + 8 * cache.pair_count <= len(mutated)
    assert 300 < refused < 3000


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cache.bin"
    if kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(NotFound if kind == "missing" else InvalidConfig, match=str(path)):
        load_cache(path)
    if kind != "missing":
        with pytest.raises(InvalidConfig, match=f"{path} is not a file"):
            save_cache(NgramCache(), path)


def test_a_cache_is_not_saved_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot write .*/no/cache\.bin: No such file"):
        save_cache(NgramCache(), tmp_path / "no" / "cache.bin")


def test_a_save_keeps_permissions_and_links_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    place, link = tmp_path / "cache.bin", tmp_path / "link.bin"
    save_cache(NgramCache(), place, mode=0o600)
    assert place.stat().st_mode & 0o777 == 0o600
    place.chmod(0o640)
    link.symlink_to(place)
    save_cache(cache_of([1, 2, 3]), link)
    assert place.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink() and len(load_cache(place)) == 3
    assert {each.name for each in tmp_path.iterdir()} == {"cache.bin", "link.bin"}


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache.bin"
    save_cache(cache_of([1, 2, 3]), place)
    before = place.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ngram_file.os, "fsync", full)
    with pytest.raises(InvalidConfig, match=r"cannot write .*cache\.bin: No space left on device"):
        save_cache(cache_of([4, 5, 6, 7]), place)
    assert place.read_bytes() == before
    assert list(tmp_path.iterdir()) == [place]


def test_a_save_pauses_now_and_then(tmp_path: Path) -> None:
    pauses: list[int] = []
    cache = cache_of(repeating_tokens(2000, 1))
    save_cache(cache, tmp_path / "a", pause=lambda: pauses.append(1))
    assert len(pauses) == len(cache) // 256 + 1
    assert content(load_cache(tmp_path / "a")) == content(cache)


KILLED = """
import os, signal, sys
from pathlib import Path
from outrider.drafters import ngram_file
from outrider.drafters.ngram_cache import NgramCache
def some(cache):
    yield bytes(1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
ngram_file.encode = some
ngram_file.save_cache(NgramCache(), Path(sys.argv[1]))
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "cache.bin"
    save_cache(cache_of([1, 2, 3]), place)
    before = place.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert place.read_bytes() == before
    (part,) = [each for each in tmp_path.iterdir() if each != place]
    save_cache(cache_of([4, 5, 6]), place)
    assert part.exists(), "another process may be writing it"
    os.utime(part, (time.time() - 7200,) * 2)
    save_cache(cache_of([4, 5, 6]), place)
    assert list(tmp_path.iterdir()) == [place] and len(load_cache(place)) == 3
