"""What tests of teaching share: a tiny target, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.kept_rows import KeptText
from tests.support.tiny_heads import write_llama


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture(scope="session")
def texts(target: Path) -> list[KeptText]:
    from tests.support.kept_texts import write_texts

    return write_texts(target)
