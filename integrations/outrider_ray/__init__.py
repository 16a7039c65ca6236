"""Runs Outrider on a Ray cluster, as a Ray Serve application; Ray itself is the extra `ray`.

    serve run outrider_ray:app model=/models/large.gguf draft_model=/models/small.gguf drafts=1-4

Each replica of `Serving` runs a target and its orchestrator, each of `Draft` a draft, all as the
`outrider` command does; the replicas of `Ingress` take HTTP and gRPC and choose where a text is
written. What the arguments mean is in `outrider_ray.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def app(args: Mapping[str, Any]) -> Any:
    """Return the Serve application with these arguments. Raises InvalidConfig."""
    from outrider_ray.application import build
    from outrider_ray.settings import Settings

    return build(Settings.read(args))
