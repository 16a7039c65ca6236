"""Serve's hook for choosing a replica: asks `outrider_ray.routing`.

Serve copies this module into its own processes, so it keeps nothing of its own.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import RequestRouter

from outrider_ray.routing import HeldPrefixes, Route, ranked


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Prefers the replica with the least to do, counting what it has to read of the prompt."""

    def initialize_state(self, reading: int = 2048, **_: Any) -> None:
        """Take `request_router_kwargs`."""
        self._reading = reading
        self._prefixes = HeldPrefixes()
        self._in_flight: dict[str, int] = {}  # sent from here and not over, by replica

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return the replicas, each a rank of its own, the best one first."""
        if pending_request is not None:  # once all of them were asked
            pending_request.routing_context.should_backoff = True
        replicas = {each.replica_id.unique_id: each for each in candidate_replicas}
        loads = {name: self._load(each) for name, each in replicas.items()}
        order = ranked(_route_of(pending_request), loads, self._prefixes, self._reading)
        return [[replicas[name]] for name in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Note what the replica reads, and that it has one more to do until the call is over."""
        name = replica_id.unique_id
        self._prefixes.note(name, _route_of(pending_request).digests)
        self._in_flight[name] = self._in_flight.get(name, 0) + 1
        loop = self._event_loop

        def over(_: Any) -> None:
            loop.call_soon_threadsafe(self._note_end, name)

        result.add_done_callback(over)

    def update_replicas(self, replicas: list[Any]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        names = {each.unique_id for each in self.curr_replicas}
        self._prefixes.keep(names)
        self._in_flight = {n: count for n, count in self._in_flight.items() if n in names}

    def _load(self, replica: Any) -> int:
        """Return the calls in flight at a replica: ours, or all of them where Serve knows more."""
        own = self._in_flight.get(replica.replica_id.unique_id, 0)
        return max(own, self.replica_queue_len_cache.get(replica.replica_id) or 0)

    def _note_end(self, name: str) -> None:
        if self._in_flight.get(name, 0) > 0:
            self._in_flight[name] -= 1


def _route_of(pending_request: Any) -> Route:
    """Return the route that is the first argument of the call; an empty one for other calls."""
    args = getattr(pending_request, "args", None) or (None,)
    return args[0] if isinstance(args[0], Route) else Route()
