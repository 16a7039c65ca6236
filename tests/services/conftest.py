"""What every test of whole services needs: one event loop for all of them.

gRPC's asyncio layer has one poller for the life of a process. Events of a loop
that is closed stay in its way, and servers freed later complain to whatever
test is next.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from outrider.core.control import Control


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of this folder on one loop."""
    here = Path(__file__).parent
    on_one_loop(item for item in items if here in item.path.parents)


def on_one_loop(items: Iterable[pytest.Item]) -> None:
    """Run tests on the loop of the session."""
    for item in items:
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def _collect_servers() -> AsyncIterator[None]:
    """Free the last servers while their loop runs."""
    yield
    gc.collect()


@pytest.fixture
def every_line_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what sources without a model propose verified as a whole, whatever decodes take.

    What they take depends on what else the machine does.
    """

    def all_of_it(control: Control, chances: Sequence[float]) -> tuple[int, float]:
        count = min(len(chances), control.speculation.local_n_max)
        return count, float(count)

    monkeypatch.setattr(Control, "best_of_line", all_of_it)
