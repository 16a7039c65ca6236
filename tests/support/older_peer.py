"""A service as a peer of an older protocol meets it: methods and fields of then, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tests.support.protocols import Dialect
from tests.support.proxy import Meddler, Proxy, Way


class OlderPeer(Proxy):
    """Stands before a service, or its clients: what is newer than a protocol does not get through.

    `dropped` counts bytes by method, so that a test can say that there was something newer.
    """

    def __init__(self, upstream: str, protocol: str) -> None:
        super().__init__(upstream, "", lambda: self.meddler_of(""))
        self._dialect = Dialect(protocol)
        self.dropped = Counter[str]()
        self.refused: set[str] = set()

    async def _forward(self, method: str, requests: Any, context: Any) -> None:
        if self._dialect.knows(method) or not method.startswith("/outrider."):
            await super()._forward(method, requests, context)
            return
        self.refused.add(method)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    def meddler_of(self, method: str) -> Meddler:
        """Return what every message of a call goes through."""

        async def meddle(way: Way, message: bytes) -> AsyncIterator[bytes]:
            if not self._dialect.knows(method):
                yield message
                return
            cut = self._dialect.request if way is Way.UP else self._dialect.response
            older = cut(method, message)
            self.dropped[method] += len(message) - len(older)
            yield older

        return meddle
