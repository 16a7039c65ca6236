"""Puts the deployments together."""

from __future__ import annotations

from typing import Any

from ray import serve

from outrider_ray.drafting import Directory, Draft
from outrider_ray.ingress import Ingress
from outrider_ray.serving import Serving
from outrider_ray.settings import Settings, deployments

GRPC_SERVICES = [
    "outrider.v1.orchestrator_service_pb2_grpc.add_OrchestratorServiceServicer_to_server"
]
"""For Serve's gRPC proxy: its `grpc_options`."""


def build(settings: Settings) -> Any:
    """Return the application."""
    options = deployments(settings)

    def bound(kind: type, *arguments: Any) -> Any:
        name = kind.__name__
        return serve.deployment(kind, name=name).options(**options[name]).bind(*arguments)

    directory = bound(Directory)
    others = [bound(Draft, settings, directory)] if settings.draft_model else []
    return bound(Ingress, bound(Serving, settings, directory), *others)
