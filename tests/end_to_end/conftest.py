"""Services that several tests ask and none of them harms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.commands import service, status, until


@pytest.fixture(scope="session")
def orchestrator() -> Iterator[str]:
    """Three services started by hand; the address to ask. It always waits for four draft tokens."""
    with (
        service("target", "--model", str(BUNDLED_TARGET), "--threads", "1") as target,
        service("draft", "--model", str(BUNDLED_DRAFT), "--threads", "1") as draft,
        service(
            *("orchestrator", "--target", target, "--draft", draft, "--draft-timeout", "30"),
            *("--n-draft", "4"),
        ) as address,
    ):
        until(lambda: "\nspeculating with " in status(address).out)
        yield address
