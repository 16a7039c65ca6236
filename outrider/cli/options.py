"""Groups of options that several commands share, written down once.

A command takes such a group as one parameter, and `spread` turns it into an
option per field:

    @spread
    def target(model: ModelPath, engine: ModelOptions = ModelOptions()) -> None: ...

A `Prefix` in the annotation names the options of a second group of the same
kind, such as `--draft-threads` beside `--threads`.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from outrider.rpc.run_model import ModelConfig
    from outrider.rpc.security import ClientSecurity, ServerSecurity
    from outrider.rpc.server import ServerConfig


@dataclass(frozen=True, slots=True)
class Prefix:
    """Puts a word before the options of a group, and them in a panel of the help."""

    word: str = ""
    panel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run a model."""

    alias: Annotated[str, typer.Option(help="The name told to others; else the file's.")] = ""
    n_gpu_layers: Annotated[
        int, typer.Option(help="Layers on the GPU; -1: all, if llama.cpp was built for one.")
    ] = -1
    main_gpu: Annotated[int, typer.Option(help="Above 0: the one GPU to use; else all.")] = 0
    tensor_split: Annotated[
        str, typer.Option(metavar="N,N,...", help="Proportions of the model per GPU.")
    ] = ""
    threads: Annotated[
        int, typer.Option(help="Threads; 0: as many as affinity and quota allow.")
    ] = 0
    threads_batch: Annotated[
        int, typer.Option(help="Threads of a decode of several tokens; 0: the same.")
    ] = 0
    batch: Annotated[int, typer.Option(help="Tokens of one decode at most.")] = 512
    context: Annotated[
        int, typer.Option("--ctx", help="Tokens of a session; 0: as trained, at most 4096.")
    ] = 0
    sessions: Annotated[int, typer.Option(help="Sessions with a cache at the same time.")] = 4
    numa: Annotated[str, typer.Option(metavar="MODE", help="distribute, isolate or numactl.")] = ""
    no_mmap: Annotated[bool, typer.Option("--no-mmap", help="Read the file, do not map it.")] = (
        False
    )
    mlock: Annotated[bool, typer.Option("--mlock", help="Keep the weights in memory.")] = False
    cache_type_k: Annotated[
        str, typer.Option(metavar="TYPE", help="Keys of the cache: f16, f32, q8_0, ...")
    ] = "f16"
    cache_type_v: Annotated[
        str, typer.Option(metavar="TYPE", help="Values of the cache: f16, f32, q8_0, ...")
    ] = "f16"
    nice: Annotated[int, typer.Option(help="Give way to other processes; 19 most.")] = 0
    numerics: Annotated[
        str,
        typer.Option(metavar="PROFILE", help="exact: equal bits if possible; law: fastest."),
    ] = ""

    def config(self, model: Path) -> ModelConfig:
        """Return the configuration of a service. Raises InvalidConfig."""
        from outrider.rpc.run_model import ModelConfig

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ModelConfig(model=model, mmap=not values.pop("no_mmap"), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Whom a service lets in, and how it stops."""

    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote", help="Let --listen name an address that other machines reach."
        ),
    ] = False
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The shared token that calls must carry.")
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Serve TLS with this certificate.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Demand client certificates signed by this.")
    ] = None
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="After SIGTERM, time for what is under way.")
    ] = 5.0
    reflection: Annotated[bool, typer.Option("--reflection", help="Serve gRPC reflection.")] = False
    stop_on_stdin_end: Annotated[
        bool, typer.Option("--stop-on-stdin-end", hidden=True, help="Stop with the parent.")
    ] = False

    def config(self, listen: str) -> ServerConfig:
        """Return the configuration of a server."""
        from outrider.rpc.server import ServerConfig

        return ServerConfig(
            listen=listen,
            security=self._security(),
            reflection=self.reflection,
            grace_seconds=self.grace,
            stop_on_stdin_end=self.stop_on_stdin_end,
        )

    def _security(self) -> ServerSecurity:
        from outrider.rpc.security import ServerSecurity

        return ServerSecurity(
            allow_remote=self.allow_remote,
            token_file=self.token_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What a client shows to a service that it calls."""

    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token that the service wants.")
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Use TLS, and trust certificates signed by this."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Our certificate, if the service wants one.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None

    def security(self) -> ClientSecurity:
        """Return what a channel needs."""
        from outrider.rpc.security import ClientSecurity

        return ClientSecurity(
            token_file=self.token_file,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How to speculate, where a request or the orchestrator says nothing else."""

    n_draft: Annotated[
        int | None, typer.Option(help="Draft exactly so many tokens a round, 0 to 64.")
    ] = None
    n_max: Annotated[
        int | None, typer.Option(help="Draft at most so many tokens a round.", show_default="16")
    ] = None
    n_min: Annotated[
        int | None, typer.Option(help="Verify no draft with fewer tokens.", show_default="0")
    ] = None
    p_min: Annotated[
        float | None,
        typer.Option("--p-min", help="Stop before a token less probable.", show_default="0"),
    ] = None
    run_ahead: Annotated[
        Literal["on", "off"] | None,
        typer.Option(
            metavar="on|off",
            help="Draft while the target verifies.",
            show_default="as it pays",
        ),
    ] = None
    policy: Annotated[
        Literal["measured", "fixed", "classic"] | None,
        typer.Option(
            metavar="NAME",
            help="Who decides the draft length: measured, fixed or classic.",
            show_default="measured",
        ),
    ] = None

    def known(self) -> dict[str, Any]:
        """Return what was said, by the names of Speculation's fields.

        Raises InvalidRequest for a length that is pinned and chosen at once.
        """
        from outrider.errors import InvalidRequest
        from outrider.messages import MAX_DRAFT
        from outrider.speculation import Policy

        values: dict[str, Any] = {
            "n_max": self.n_max,
            "n_min": self.n_min,
            "p_min": self.p_min,
            "run_ahead": None if self.run_ahead is None else self.run_ahead == "on",
            "policy": Policy(self.policy) if self.policy else None,
        }
        if self.n_draft is not None:
            if self.n_max is not None or self.policy is not None:
                raise InvalidRequest("n_draft", "pins the length; it excludes n_max and policy")
            if not 0 <= self.n_draft <= MAX_DRAFT:
                raise InvalidRequest("n_draft", f"must be in [0, {MAX_DRAFT}], not {self.n_draft}")
            values |= {"n_max": self.n_draft, "policy": Policy.FIXED}
        return {name: value for name, value in values.items() if value is not None}


Group = ModelOptions | ServerOptions | ClientOptions | DraftingOptions


def arguments(group: Group) -> list[str]:
    """Return the command line that says what differs from the defaults of a group."""
    words = []
    for name, option in _options(type(group)).items():
        value = getattr(group, name)
        if value != option.default:
            flag = _flag(name, option.info)
            words.append(flag if value is True else f"{flag}={value}")
    return words


def flags(kind: type[ModelOptions]) -> list[str]:
    """Return the names of a group's options."""
    return [_flag(name, field.info).removeprefix("--") for name, field in _options(kind).items()]


# --- from groups to options ---


@dataclass(frozen=True, slots=True)
class _Field:
    kind: Any
    info: Any
    default: Any


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option for every field of its groups."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, dict[str, str]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        kind, *extras = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if not is_dataclass(kind):
            keyword = inspect.Parameter.KEYWORD_ONLY  # groups may stand between
            parameters.append(parameter.replace(annotation=hint, kind=keyword))
            continue
        prefix = next((extra for extra in extras if isinstance(extra, Prefix)), Prefix())
        expanded = _expand(kind, parameter.default, prefix)
        parameters += expanded.values()
        groups[parameter.name] = {field: each.name for field, each in expanded.items()}

    @functools.wraps(command)
    def spread_out(**values: Any) -> None:
        for name, names in groups.items():
            group = hints[name]
            kind = get_args(group)[0] if hasattr(group, "__metadata__") else group
            values[name] = kind(**{field: values.pop(own) for field, own in names.items()})
        command(**values)

    spread_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread_out


def _expand(kind: Any, default: Any, prefix: Prefix) -> dict[str, inspect.Parameter]:
    """Return a parameter for every field of a group."""
    word = f"{prefix.word}_" if prefix.word else ""
    expanded = {}
    for name, option in _options(kind).items():
        info = copy.copy(option.info)
        info.default, info.param_decls = ..., (_flag(name, info, prefix.word),)
        info.rich_help_panel = prefix.panel or info.rich_help_panel
        expanded[name] = inspect.Parameter(
            word + name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[option.kind, info],
            default=option.default
            if default is inspect.Parameter.empty
            else getattr(default, name),
        )
    return expanded


def _options(kind: Any) -> dict[str, _Field]:
    """Return the fields of a group and the options in their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for field in fields(kind):
        own, info = get_args(hints[field.name])
        found[field.name] = _Field(own, info, field.default)
    return found


def _flag(name: str, info: Any, prefix: str = "") -> str:
    # In an annotation typer finds the first flag where a default would stand.
    flag = info.default if isinstance(info.default, str) else "--" + name.replace("_", "-")
    return flag.replace("--", f"--{prefix}-", 1) if prefix else flag
