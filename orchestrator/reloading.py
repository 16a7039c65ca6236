"""What of its settings an orchestrator takes while it runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

from orchestrator.config import OrchestratorConfig
from orchestrator.names import Name
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from orchestrator.service import Orchestrator
from outrider import logs

_LIMITS = frozenset(
    {
        "draft_seconds",
        "target_seconds",
        "request_seconds",
        "generations",
        "jobs",
        "job_seconds",
        "chat_template",
    }
)
_PEERS = {"targets": "target", "drafts": "draft"}


def take(
    orchestrator: Orchestrator, config: OrchestratorConfig, names: Collection[str]
) -> Collection[str]:
    """Take limits, the template, how to speculate, and the lists of targets and drafts.

    Generations in flight keep what they began with. Returns the fields that were taken.
    """
    before = orchestrator.config
    speculation = set(names) & {each.name for each in fields(before.speculation)}
    taken = (set(names) & (_LIMITS | set(_PEERS))) | speculation
    known = {name: getattr(config, name) for name in taken - speculation}
    for name, role in _PEERS.items():
        if name in taken:
            _follow_list(orchestrator.pool, role, getattr(before, name), known[name], config)
    orchestrator.reconfigure(replace(before, speculation=config.speculation, **known))
    return taken


def _follow_list(
    pool: Pool,
    role: str,
    before: Collection[str],
    now: Collection[str],
    config: OrchestratorConfig,
) -> None:
    """Dial what is new in a list, and leave what is no more in it."""
    for address in [each for each in now if each not in before]:
        logs.event("outrider.orchestrator", f"{role} added", address=address)
        pool.follow(Name(DialledPeer(role, address, config.peer_security), config.peer_security))
    for name in [each for each in pool.names if each.role == role and each.configured not in now]:
        logs.event("outrider.orchestrator", f"{role} removed", address=name.configured)
        pool.unfollow(name)
