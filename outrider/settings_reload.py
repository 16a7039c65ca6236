"""Reads the settings of a running process again, and says what of them takes a restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from outrider import logs
from outrider.errors import OutriderError

_NAMES = {
    "targets": "target",
    "drafts": "draft",
    "draft_seconds": "draft-timeout",
    "target_seconds": "target-timeout",
    "request_seconds": "request-timeout",
    "job_seconds": "job-keep",
    "chat_template": "chat-template-file",
    "grace_seconds": "grace",
    "stall_seconds": "stall-timeout",
    "context": "ctx",
    "draft": "draft-model",
    "mtp": "own-draft",
    "head": "keep-rows",
    "keeping": "keep-rows",
    "kept_folder": "keep-rows",
    "kept_most_bytes": "keep-rows-mib",
    "kept_seconds": "keep-rows-days",
    "gateway": "http",
    "http_listen": "http",
    "http_key_option": "http-key-file",
    "http_tokens": "tokens",
    "http_allow_remote": "allow-remote",
    "http_tls_cert": "tls-cert",
    "http_tls_key": "tls-key",
    "http_tls_client_ca": "tls-client-ca",
    "http_cors_origins": "http-cors",
    "http_allowed_hosts": "http-hosts",
    "http_body_bytes": "http-body-limit",
    "http_idle_seconds": "http-keep-alive",
    "http_stall_seconds": "stall-timeout",
    "http_metrics_names": "metrics-names",
}
"""Options that are not called as the fields that they set."""

NOWHERE = frozenset({"log_level"})
"""What every service takes again by itself."""

Take = Callable[[Any, Collection[str]], Collection[str]]
"""Takes what it can of a configuration and the fields that changed; returns those fields."""


class Settings:
    """The configuration of a service, and how to read it anew."""

    def __init__(self, config: Any, read: Callable[[], Any]) -> None:
        """`config` is a dataclass with a `server`; `read` returns another, or raises."""
        self._config = config
        self._read = read

    def reload(self, take: Take | None = None) -> None:
        """Read it again and take what can be; one line says what, and what needs a restart."""
        try:
            config = self._read()
        except Exception as error:  # a file may hold anything; the service continues as it is
            words = str(error) if isinstance(error, OutriderError) else _words_of(error)
            logs.warning("outrider.rpc", "the settings are not read again", detail=words)
            return
        names = sorted(set(changed(self._config, config)))
        taken = set(take(config, names) if take is not None else ()) | (set(names) & NOWHERE)
        logs.set_level(config.server.log_level)
        left = sorted({option(name) for name in names if name not in taken})
        changes = sorted({option(name) for name in names if name in taken})
        message = "settings read again" + ("; some need a restart" if left else "")
        log = logs.warning if left else logs.event
        log("outrider.rpc", message, changed=changes, needs_restart=left)
        self._config = _with(self._config, config, taken)


def changed(before: Any, after: Any) -> Iterator[str]:
    """Yield the names of fields that differ, those of nested dataclasses included.

    A class may say what its fields' names begin with here, where it has names that others have.
    """
    prefix = getattr(type(before), "PREFIX", "")
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if not each.compare or old == new:
            continue
        if is_dataclass(old) and type(old) is type(new):
            yield from changed(old, new)
        else:
            yield prefix + each.name


def _with(before: Any, after: Any, names: Collection[str]) -> Any:
    """Return `before` with those fields of `after` whose names, as in `changed`, are given.

    It is what the process runs with, to be compared with the next one that is read.
    """
    prefix = getattr(type(before), "PREFIX", "")
    made = copy(before)  # unchecked: values of two valid ones need not make a valid third
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if is_dataclass(old) and type(old) is type(new):
            object.__setattr__(made, each.name, _with(old, new, names))
        elif prefix + each.name in names:
            object.__setattr__(made, each.name, new)
    return made


def option(name: str) -> str:
    """Return the option that sets a field."""
    return f"--{_NAMES.get(name, name).replace('_', '-')}"


def _words_of(error: Exception) -> str:
    words = getattr(error, "format_message", None)
    return " ".join(str(words() if words is not None else error).split())
