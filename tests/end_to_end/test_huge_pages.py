"""A service that holds a model begins with huge pages, where the kernel has them for who asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.memory import huge_pages, libc_version, tunables_for_huge_pages
from tests.support.processes import ServiceProcess

WANTED = tunables_for_huge_pages({}, huge_pages(), libc_version())
TARGET = Path(__file__).parents[2] / "models" / "stdlib-target-q8_0.gguf"


@pytest.mark.skipif(WANTED is None, reason="no huge pages for who asks")
async def test_a_target_begins_with_huge_pages_in_the_same_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    process = ServiceProcess("target", "--model", str(TARGET), "--threads", "1")
    process.start()
    try:
        await process.wait_until_serving()
        assert f"GLIBC_TUNABLES={WANTED}" in read(process.pid, "environ").split("\0")
        assert str(TARGET) not in read(process.pid, "maps")
    finally:
        process.stop()


def read(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()
