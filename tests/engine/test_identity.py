"""A model's identity: another for whatever changes logits, and equal for all else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.engine import identity
from outrider.engine.identity import FilesDigest
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.errors import InvalidConfig
from tests.support.tiny_gguf import write_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep digests apart from the user's own; small parts, so that there are several."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "_PART_BYTES", 1000)
    monkeypatch.setattr(identity, "_BLOCK_BYTES", 100)
    return tmp_path / "cache" / "outrider" / "digests"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def digest(*paths: Path) -> bytes:
    with FilesDigest(paths) as files:
        return files.digest()


CONTENT = bytes(range(256)) * 10


def test_equal_files_have_equal_digests_wherever_they_are(tmp_path: Path) -> None:
    there = write(tmp_path / "b", CONTENT)
    assert digest(write(tmp_path / "a", CONTENT)) == digest(there)


@pytest.mark.parametrize("at", [0, 999, 1000, 2559])
def test_every_byte_counts(tmp_path: Path, at: int) -> None:
    changed = bytearray(CONTENT)
    changed[at] ^= 1
    assert digest(write(tmp_path / "a", CONTENT)) != digest(write(tmp_path / "b", bytes(changed)))


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", CONTENT), write(tmp_path / "b", CONTENT)
    before = digest(first, second)
    write(second, CONTENT[::-1])
    assert digest(first, second) != before != digest(first)


def test_a_digest_is_kept_until_the_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a", CONTENT)
    known = digest(path)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_digest_part", None)  # nothing is read
        assert digest(path) == known
    os.utime(write(path, CONTENT[::-1]), ns=(0, path.stat().st_mtime_ns))
    assert digest(path) != known


def test_a_kept_digest_that_is_cut_short_is_not_believed(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a", CONTENT)
    known = digest(path)
    next(cache.iterdir()).write_bytes(b"short")
    assert digest(path) == known


def test_of_too_many_digests_the_oldest_go(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity._KEPT, "_most", 3)
    for number in range(6):
        digest(write(tmp_path / str(number), CONTENT))
    assert len(list(cache.iterdir())) == 3


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a", CONTENT)
    known = digest(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file is no folder
    assert digest(path) == known


def test_a_file_that_changes_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", CONTENT)
    with FilesDigest([path]) as files:
        write(path, CONTENT + b"more")
        with pytest.raises(InvalidConfig, match="was changed while it was loaded"):
            files.digest()


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        FilesDigest([tmp_path / "none"])


def loaded(path: Path, **options: object) -> bytes:
    settings = {"context": 256, "sequence_count": 1, "thread_count": 1, "pad_multiple": 1}
    model = LlamaModel(LlamaConfig(path=path, **{**settings, **options}))  # type: ignore[arg-type]
    try:
        return model.describe().identity
    finally:
        model.close()


def test_what_changes_logits_changes_the_identity_and_nothing_else_does(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", seed=1)
    mine = loaded(path)
    assert len(mine) == 32
    assert loaded(write(tmp_path / "same.gguf", path.read_bytes()), thread_count=2) == mine
    others = [
        loaded(write_model(tmp_path / "b.gguf", seed=2)),
        loaded(path, context=128),
        loaded(path, cache_type_k="q8_0"),
    ]
    assert len({mine, *others}) == 4
