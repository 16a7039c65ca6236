"""Where this process is in the cluster."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray import serve


@dataclass(frozen=True, slots=True)
class Place:
    """A replica's own name, its node's, and the address by which other nodes reach that."""

    replica: str
    node: str
    host: str


def here() -> Place:
    """Return the place of the replica that calls this."""
    return Place(
        replica=str(serve.get_replica_context().replica_id.unique_id),
        node=str(ray.get_runtime_context().get_node_id()),
        host=str(ray.util.get_node_ip_address()),
    )
