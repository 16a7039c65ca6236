"""Follows the records of a configured name: each of several is a service that is dialled."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from orchestrator.peers import DESCRIBE_SECONDS, DialledPeer
from outrider import logs
from outrider.core.route import dialled
from outrider.rpc.channel import PLAIN, Address, read_address
from outrider.rpc.security import ANONYMOUS, ClientSecurity

_ITSELF = ""
"""Stands for the name in place of a record."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the IP addresses of a host; none where nobody answers for it."""

Change = Callable[[DialledPeer], None]
"""Takes a service into a pool, or out of it."""


def may_have_records(address: str) -> bool:
    """Return whether HOST:PORT names a host, and not an address or this machine."""
    host = read_address("address", address).host
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host != "localhost"
    return False


async def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, as the system's resolver has them now."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Name:
    """A configured address and its services: itself, or one for each of several records."""

    def __init__(
        self, peer: DialledPeer, security: ClientSecurity = ANONYMOUS, resolve: Resolve = resolve
    ) -> None:
        """`peer` is dialled by the address."""
        self.role = peer.role
        self.configured = peer.address
        self._address: Address = read_address(peer.role, peer.address)
        self._security = security
        self._resolve = resolve
        self._dialled = {_ITSELF: peer}  # by IP address, or by the name until it has had several

    @property
    def services(self) -> list[DialledPeer]:
        """Those that are dialled for it now."""
        return list(self._dialled.values())

    async def follow(self, dial: Change, leave: Change) -> None:
        """Dial and leave services as the records come and go, for as long as this runs."""
        while may_have_records(self.configured):
            try:
                records = await self._resolve(self._address.host, self._address.port)
                before = [ip for ip in self._dialled if ip != _ITSELF]
                self._take(dialled(records, before) or [_ITSELF], dial, leave)
            except Exception as error:  # a resolver may fail in any way; it is asked again
                logs.internal_error("outrider.orchestrator", error)
            await asyncio.sleep(DESCRIBE_SECONDS)

    def _take(self, wanted: list[str], dial: Change, leave: Change) -> None:
        for ip in [ip for ip in wanted if ip not in self._dialled]:
            address = self._address_of(ip)
            peer = DialledPeer(self.role, address, self._security, self._address.host)
            self._dialled[ip] = peer
            logs.event("outrider.orchestrator", f"{self.role} found", address=peer.address)
            dial(peer)
        for ip in [ip for ip in self._dialled if ip not in wanted]:
            leave(self._dialled.pop(ip))

    def _address_of(self, ip: str) -> str:
        host = f"[{ip}]" if ":" in ip else ip
        return f"{PLAIN if self._address.plain else ''}{host}:{self._address.port}"
