"""The folder of kept rows: what is written is read, whole or not at all, and the oldest goes."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import kept_rows
from outrider.errors import InvalidConfig
from outrider.kept_rows import (
    Kept,
    KeptSource,
    KeptText,
    drop_shards,
    folder_bytes,
    open_folder,
    write_shard,
)

SOURCE = KeptSource(model="ab", layers=(0, 1, 3), width=2, vocabulary=100, top=4)


def text(length: int, first: int = 0, asked: int = 1) -> KeptText:
    """Return a text whose first tokens were not answered."""
    ids = np.arange(4 * length, dtype=np.int32).reshape(length, 4)
    ids[:asked] = -1
    return KeptText(
        first,
        np.arange(length, dtype=np.int32),
        np.full((length, 6), first, np.float16),
        ids,
        np.zeros((length, 4), np.float16),
    )


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit of open files that a program raises itself, as an interactive shell sets it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 512  # more than the tests before this one left open
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_there_may_be_more_shards_than_files_are_usually_open(
    tmp_path: Path, few_files: int
) -> None:
    open_folder(tmp_path, SOURCE)
    count = few_files // 3  # shards, of four files each
    for _ in range(count):
        write_shard(tmp_path, [text(2)])
    texts = Kept(tmp_path).texts
    drop_shards(tmp_path, 0.0, 0.0)  # as a target does while a lesson reads
    assert [text.rows.shape for text in texts] == [(2, 6)] * count


def test_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    open_folder(tmp_path / "kept", SOURCE)
    write_shard(tmp_path / "kept", [text(5), text(3, first=7, asked=3)])
    write_shard(tmp_path / "kept", [text(2)])
    kept = Kept(tmp_path / "kept")
    assert kept.source == SOURCE
    assert [(len(each.tokens), each.first, each.answered) for each in kept.texts] == [
        (5, 0, 4),
        (3, 7, 0),
        (2, 0, 1),
    ]
    assert kept.answered == 5
    assert kept.texts[0].written < kept.texts[2].written <= time.time()
    assert np.array_equal(kept.texts[1].rows, text(3, first=7).rows)
    assert kept.texts[0].top_ids[1].tolist() == [4, 5, 6, 7]
    assert (tmp_path / "kept").stat().st_mode & 0o77 == 0  # of its owner alone


def test_a_folder_is_of_one_source(tmp_path: Path) -> None:
    open_folder(tmp_path, SOURCE)
    open_folder(tmp_path, SOURCE)
    for other in (replace(SOURCE, model="cd"), replace(SOURCE, layers=(0, 1, 2))):
        with pytest.raises(InvalidConfig, match="another model or layers"):
            open_folder(tmp_path, other)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version": 1, "layers": 3}', b"\xff"])
def test_a_folder_of_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidConfig, match="holds no rows"):
        Kept(tmp_path / "none")
    (tmp_path / "source.json").write_bytes(content)
    with pytest.raises(InvalidConfig, match="holds no rows"):
        Kept(tmp_path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source.json").write_text('{"version": 99}')
    with pytest.raises(InvalidConfig, match="another version"):
        Kept(tmp_path)


def test_a_shard_that_was_not_finished_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(tmp_path, SOURCE)
    write_shard(tmp_path, [text(5)])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(OSError, match="No space"):
            write_shard(tmp_path, [text(6)])
    assert [len(each.tokens) for each in Kept(tmp_path).texts] == [5]
    assert not list(tmp_path.glob(".texts-*"))
    (tmp_path / ".texts-1").mkdir()  # of who was killed
    open_folder(tmp_path, SOURCE)
    assert not list(tmp_path.glob(".texts-*"))


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    open_folder(tmp_path, SOURCE)
    write_shard(tmp_path, [text(5)])
    [file] = tmp_path.glob("texts-*/rows.npy")
    file.write_bytes(file.read_bytes()[:90])
    with pytest.raises(InvalidConfig, match=r"texts-\d+ cannot be read"):
        _ = Kept(tmp_path).texts


def test_a_shard_that_is_dropped_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(tmp_path, SOURCE)
    write_shard(tmp_path, [text(5)])
    load = np.load

    def drop_first(path: Path, **options: Any) -> Any:
        if path.name == "rows.npy":
            drop_shards(tmp_path, 0.0, 0.0)
        return load(path, **options)

    monkeypatch.setattr(np, "load", drop_first)
    assert Kept(tmp_path).texts == []


def test_a_shard_counts_once_it_is_whole_and_until_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(tmp_path, SOURCE)
    write_shard(tmp_path, [text(5)])
    [shard] = tmp_path.glob("texts-*")
    size = sum(file.stat().st_size for file in shard.iterdir())
    (tmp_path / ".texts-1").mkdir()  # that is being written
    (tmp_path / ".texts-1" / "rows.npy").write_bytes(b"part")
    assert folder_bytes(tmp_path) == size
    monkeypatch.setattr(kept_rows, "_shards", lambda folder: [folder / "texts-0", shard])
    assert folder_bytes(tmp_path) == size


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    open_folder(tmp_path, SOURCE)
    for length in (3, 4, 5):
        write_shard(tmp_path, [text(length)])
    sizes = [sum(f.stat().st_size for f in s.iterdir()) for s in sorted(tmp_path.glob("texts-*"))]
    drop_shards(tmp_path, sum(sizes), 0.0)
    assert len(Kept(tmp_path).texts) == 3
    drop_shards(tmp_path, sizes[1] + sizes[2], 0.0)
    assert [len(each.tokens) for each in Kept(tmp_path).texts] == [4, 5]
    drop_shards(tmp_path, float("inf"), 1e12)  # all are older
    assert Kept(tmp_path).texts == []
