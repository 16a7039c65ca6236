"""Counts what a caller's generations use, and shows a caller what it may see of the rest."""

from __future__ import annotations

from contextlib import aclosing

from orchestrator.completions import Events
from outrider.access import HIDDEN, Access, Caller, without_addresses
from outrider.response import Delta, Started
from outrider.v1 import orchestrator_service_pb2 as messages

_FOR_CLIENTS = {
    "service_version",
    "peers",
    "speculating",
    "reason",
    "controller",
    "draining",
    "text_sources",
}
"""Fields of a status; what is added later is for operators until it is named here."""


async def counted(events: Events, access: Access, caller: Caller, completion_count: int) -> Events:
    """Pass on what a generation of a caller brings. Raises LimitReached before anything else.

    It counts as in flight until it is over, a job's also while it waits for its turn; the tokens
    of its prompt and its texts count as they come.
    """
    async with aclosing(events):
        with access.generation(caller, completion_count):
            async for event in events:
                if isinstance(event, Started):
                    access.spend(caller, len(event.prompt_token_ids))
                elif isinstance(event, Delta):
                    access.spend(caller, len(event.token_ids))
                yield event


def for_client(status: messages.GetStatusResponse) -> messages.GetStatusResponse:
    """Return a status without what is others' business: addresses, counts, who was refused.

    What is left is what a client acts on: whether there is a target and a draft, of which models.
    """
    shown = messages.GetStatusResponse()
    shown.CopyFrom(status)
    for field, _ in status.ListFields():
        if field.name not in _FOR_CLIENTS:
            shown.ClearField(field.name)
    shown.reason = without_addresses(shown.reason)
    for peer in shown.peers:
        peer.address = HIDDEN
        peer.detail = without_addresses(peer.detail)
        peer.ClearField("generation_count")
        if peer.HasField("model"):
            peer.model.ClearField("activity")
    return shown
