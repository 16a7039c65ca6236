"""Says in a line why a model does not come from Hugging Face, and what to do."""

from __future__ import annotations

import errno
from textwrap import shorten

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from outrider_cli.hub.download import Damaged
from outrider_cli.hub.names import HubName

_REASON_CHARACTERS = 120  # of what a library or a server says
_UNAUTHORIZED = 401  # status: who asks is not known


def refusal(name: HubName, error: Exception) -> str:
    """Return why a model does not come; empty for what is an error of ours."""
    hub = constants.ENDPOINT
    match error:
        case GatedRepoError():
            return _gated(name, f"{hub}/{name.repository}")
        case RepositoryNotFoundError():
            return _unknown(name, hub)
        case HfHubHTTPError():
            return _answered(name, error, hub)
        case OfflineModeIsEnabled():
            return f"{name} is not in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
        case Damaged():
            return f"what came of {name} is damaged, by its checksum, and was removed; try again"
        case httpx2.TransportError() | LocalEntryNotFoundError():
            why = shorten(str(error) or type(error).__name__, _REASON_CHARACTERS)
            return f"{name} is not in the cache, and {hub} cannot be reached: {why}"
        case OSError():
            return _unwritten(name, error)
    return ""


def _gated(name: HubName, page: str) -> str:
    if get_token():
        return f"{name.repository} is gated: its terms are accepted at {page}, by whose token it is"
    return f"{name.repository} is gated: accept its terms at {page}, and set HF_TOKEN"


def _unknown(name: HubName, hub: str) -> str:
    if get_token():
        return f"{hub} has no {name.repository}, or the token in use may not read it"
    return f"{hub} has no {name.repository}; if it is private, set HF_TOKEN"


def _answered(name: HubName, error: HfHubHTTPError, hub: str) -> str:
    status = error.response.status_code
    if status == _UNAUTHORIZED:
        return f"{hub} does not accept the token in use (HF_TOKEN)"
    return f"{hub} refuses {name}: {status} {error.response.reason_phrase}"


def _unwritten(name: HubName, error: OSError) -> str:
    place = constants.HF_HUB_CACHE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{name} does not fit {place}, which is full; HF_HOME names another folder"
    return f"{name} cannot be kept in {place}: {error.strerror or error}"
