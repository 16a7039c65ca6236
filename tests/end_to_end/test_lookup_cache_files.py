"""The files of shared n-grams: made, read, kept; a wrong one is one line and nothing runs."""

from __future__ import annotations

import signal
from pathlib import Path

from outrider.drafters.ngram_cache import NgramCache
from outrider.drafters.ngram_file import load_cache, save_cache
from tests.support.commands import Command

ALONE = ("--no-draft", "--target", "127.0.0.1:1", "--listen", "127.0.0.1:0")


def saved(path: Path) -> bytes:
    """Save a cache and return its bytes."""
    cache = NgramCache()
    cache.update([1, 2, 3, 4, 1, 2, 3], 7)
    save_cache(cache, path)
    return path.read_bytes()


def test_an_orchestrator_makes_a_dynamic_cache_and_leaves_what_it_read(tmp_path: Path) -> None:
    static, dynamic = tmp_path / "static.bin", tmp_path / "dynamic.bin"
    content = saved(static)
    files = {"OUTRIDER_LOOKUP_CACHE_DYNAMIC": str(dynamic)}
    options = ("--lookup-cache-static", str(static), "--share-past-texts", "10000")
    command = Command("orchestrator", *ALONE, *options, env=files)
    command.wait_for_line("listening on")
    assert dynamic.stat().st_mode & 0o777 == 0o600
    command.process.send_signal(signal.SIGTERM)
    told = command.finish()
    assert told.code == 0
    assert f'"lookup cache loaded", "file": "{static}"' in told.err
    assert static.read_bytes() == content and load_cache(dynamic).pair_count == 0


def test_a_damaged_cache_is_one_line_with_the_offset_and_nothing_listens(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    content = saved(path)
    path.write_bytes(content[:-3])
    told = Command("orchestrator", *ALONE, "--lookup-cache-dynamic", str(path)).finish()
    assert (told.code, told.out) == (1, "")
    start = f"outrider: lookup-cache-dynamic: {path} is damaged, or no cache of this vocabulary: "
    assert told.err.startswith(f"{start}byte ") and told.err.count("\n") == 1
    assert path.read_bytes() == content[:-3], "it is left to look at"


def test_up_says_that_a_static_cache_is_missing_and_leaves_no_process_behind(
    tmp_path: Path,
) -> None:
    path = tmp_path / "no.bin"
    options = ("--target", "127.0.0.1:1", "--no-draft", "--listen", "127.0.0.1:0")
    command = Command("up", *options, "--lookup-cache-static", str(path))
    told = command.finish()
    line = f"outrider: orchestrator: lookup-cache-static: there is no file {path}\n"
    assert (told.code, told.out, told.err) == (1, "", line)
    assert command.services() == {}
