"""A Chromium for every module of browser tests, and a scripted gateway for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, chromium, opened
from tests.support.scripted_gateway import Gateway, serving


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with serving() as gateway:
        yield gateway


@pytest.fixture
def page(chrome: Browser, gateway: Gateway) -> Iterator[Browser]:
    """The page, opened; at the end nothing was complained about and nobody else asked."""
    with opened(chrome, gateway.url):  # on a port of its own, so nothing is kept of other tests
        yield chrome
