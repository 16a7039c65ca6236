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
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from outrider.model_service.config import ModelOptions
from outrider.option_fields import flag_of
from outrider.sampling import NUMBERS, SamplingNumbers, SamplingParameters, read_stages
from outrider_cli.drafting import DraftingOptions

if TYPE_CHECKING:
    from gateway.config import HttpConfig
    from outrider.engine.row_keeper import Keeping
    from outrider.rpc.security import ClientSecurity
    from outrider.rpc.server import ServerConfig


Made = TypeVar("Made")


def _of_same_names(kind: Callable[..., Made], options: Any) -> Made:
    """Return a dataclass with the values of options that are called as its fields."""
    return kind(**{each.name: getattr(options, each.name) for each in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Puts a word before the options of a group, and them in a panel of the help."""

    word: str = ""
    panel: str = ""


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
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="TOML", help="Named tokens, with their rights and limits."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Serve TLS with this certificate.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Demand client certificates signed by this.")
    ] = None
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="After SIGTERM, time for what is in flight.")
    ] = 5.0
    stall_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="End a stream of which nothing is read so long."),
    ] = 30.0
    reflection: Annotated[bool, typer.Option("--reflection", help="Serve gRPC reflection.")] = False
    traces: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Send traces to this OpenTelemetry collector: grpc:// or http://."
        ),
    ] = ""
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log from here on: debug, info, warning, error.")
    ] = "info"
    stop_on_stdin_end: Annotated[
        bool, typer.Option("--stop-on-stdin-end", hidden=True, help="Stop with the parent.")
    ] = False

    def config(self, listen: str) -> ServerConfig:
        """Return the configuration of a server."""
        from outrider.rpc.security import ServerSecurity
        from outrider.rpc.server import ServerConfig

        return ServerConfig(
            listen=listen,
            security=_of_same_names(ServerSecurity, self),
            reflection=self.reflection,
            traces=self.traces,
            log_level=self.log_level,
            grace_seconds=self.grace,
            stall_seconds=self.stall_timeout,
            stop_on_stdin_end=self.stop_on_stdin_end,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Whether and to whom HTTP is spoken."""

    http: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve HTTP too: page and OpenAI's API; also --host, --port.",
        ),
    ] = ""
    http_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The API key that requests must carry.",
            show_default="the one in --token-file",
        ),
    ] = None
    http_cors: Annotated[
        str, typer.Option(metavar="ORIGIN,...", help="Web pages from there may call; *: all.")
    ] = ""
    http_hosts: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Names of this machine in URLs; without a key others than loopback's are refused.",
        ),
    ] = ""
    http_slots: Annotated[bool, typer.Option("--http-slots", help="Serve /slots.")] = False
    http_body_limit: Annotated[
        int, typer.Option(metavar="BYTES", help="Of a request's body, at most.")
    ] = 4 * 1024 * 1024
    http_keep_alive: Annotated[
        int, typer.Option(metavar="SECONDS", help="Keep an idle connection open for so long.")
    ] = 75
    metrics_names: Annotated[
        str, typer.Option(metavar="vllm,llamacpp", help="Metrics under their names too.")
    ] = ""

    def config(self, server: ServerOptions) -> HttpConfig | None:
        """Return the configuration of the gateway, None without one. Raises InvalidConfig."""
        from gateway.config import HttpConfig

        if not self.http:
            return None
        its_own = self.http_key_file is not None
        config = HttpConfig(
            listen=f"127.0.0.1:{self.http}" if self.http.isdecimal() else self.http,
            key_file=self.http_key_file if its_own else server.token_file,
            key_option="--http-key-file" if its_own else "--token-file",
            tokens=server.tokens,
            allow_remote=server.allow_remote,
            tls_cert=server.tls_cert,
            tls_key=server.tls_key,
            tls_client_ca=server.tls_client_ca,
            cors_origins=_split(self.http_cors),
            allowed_hosts=_split(self.http_hosts.lower()),
            slots=self.http_slots,
            body_bytes=self.http_body_limit,
            idle_seconds=self.http_keep_alive,
            stall_seconds=server.stall_timeout,
            metrics_names=_split(self.metrics_names),
        )
        config.let_in()
        return config


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


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
    no_pings: Annotated[
        bool,
        typer.Option("--no-pings", help="Send no pings: some servers, as Ray Serve's, hang up."),
    ] = False

    def security(self) -> ClientSecurity:
        """Return what a channel needs."""
        from outrider.rpc.security import ClientSecurity

        return _of_same_names(ClientSecurity, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions(SamplingNumbers):
    """How to sample; every default is llama.cpp's."""

    no_penalize_nl: Annotated[
        bool, typer.Option("--no-penalize-nl", help="Spare newlines the penalties.")
    ] = False
    dry_sequence_breaker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="No repetition goes across it; none: there are none. Repeatable.",
            show_default="newline, colon, quote, asterisk",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN=BIAS",
            help="Add to a token's logit; TOKEN is an id or a text, BIAS a number or false: never."
            " Repeatable.",
        ),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Never end the text before its limit.")
    ] = False
    grammar: Annotated[
        str, typer.Option(metavar="GBNF", help="What the text must be; @FILE reads it.")
    ] = ""
    json_schema: Annotated[
        str, typer.Option(metavar="JSON", help="What the text must be; @FILE reads it.")
    ] = ""
    samplers: Annotated[
        str,
        typer.Option(
            metavar="NAME;NAME;...",
            help="The samplers in their order.",
            show_default="penalties; dry; top_n_sigma; top_k; tfs_z; typ_p; top_p; min_p; xtc;"
            " temperature",
        ),
    ] = ""

    def request(self) -> dict[str, Any]:
        """Return the arguments of client.Request. Raises InvalidRequest."""
        known: dict[str, Any] = {name: getattr(self, name) for name in NUMBERS}
        if self.dry_sequence_breaker is not None:
            texts = [text for text in self.dry_sequence_breaker if text != "none"]
            known["dry_sequence_breakers"] = tuple(texts)
        if self.samplers:
            known["stages"] = read_stages(self.samplers.split(";"))
        return {
            "sampling": SamplingParameters(
                penalize_newline=not self.no_penalize_nl,
                grammar=_read_text("grammar", self.grammar),
                **known,
            ),
            "logit_bias": tuple(map(_read_bias, self.logit_bias or ())),
            "ignore_eos": self.ignore_eos,
            "json_schema": _read_text("json_schema", self.json_schema),
        }


def _read_text(option: str, value: str) -> str:
    """Return a text that is given, or that `@FILE` holds. Raises InvalidRequest."""
    from outrider.errors import InvalidRequest

    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(option, f"cannot read {value[1:]}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(option, f"{value[1:]} is not UTF-8 text") from None


def _read_bias(text: str) -> tuple[int | str, float]:
    """Return a token, as an id or a text, and its bias. Raises InvalidRequest."""
    from outrider.errors import InvalidRequest

    token, separator, bias = text.rpartition("=")
    try:
        value = -math.inf if bias == "false" else float(bias)
    except ValueError:
        separator = ""
    if not separator or not token:
        raise InvalidRequest("logit_bias", f"must be TOKEN=BIAS, not {text!r}")
    return int(token) if token.isdecimal() else token, value


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningOptions:
    """Whether drafts may dial in, and which drafts are used at all."""

    accept_drafts: Annotated[
        bool | None,
        typer.Option(
            "--accept-drafts/--no-accept-drafts",
            help="Let drafts dial in (outrider draft --join); they see the texts.",
            show_default="where there is a token",
        ),
    ] = None
    trust_drafts: Annotated[
        bool,
        typer.Option("--trust-drafts", help="Let them draft under the rejection rule, too."),
    ] = False
    same_vocabulary: Annotated[
        bool,
        typer.Option("--same-vocabulary", help="Refuse drafts whose tokens are not the target's."),
    ] = False

    def config(self, server: ServerOptions) -> dict[str, Any]:
        """Return the arguments of OrchestratorConfig."""
        accepts = self.accept_drafts
        if accepts is None:
            accepts = server.token_file is not None or server.tokens is not None
        return {
            "accept_drafts": accepts,
            "trust_drafts": self.trust_drafts,
            "same_vocabulary": self.same_vocabulary,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingOptions:
    """Whether a target writes down what it decodes, to teach a head from."""

    keep_rows: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep all texts, and the target's rows, in this folder, for `outrider teach`.",
        ),
    ] = None
    keep_rows_mib: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="Of that folder at most; the oldest go.")
    ] = 4096
    keep_rows_days: Annotated[
        float, typer.Option(metavar="DAYS", min=0.0, help="After which a text goes in any case.")
    ] = 7.0

    def config(self) -> Keeping | None:
        """Return how rows are kept; None where they are not."""
        from outrider.engine.row_keeper import Keeping

        if self.keep_rows is None:
            return None
        return Keeping(
            folder=self.keep_rows,
            most_bytes=self.keep_rows_mib << 20,
            seconds=self.keep_rows_days * 24 * 3600,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingOptions:
    """What texts may be drafted from that are not their own caller's."""

    lookup_cache_static: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draft from these n-grams (outrider lookup create)."),
    ] = None
    lookup_cache_dynamic: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draft from the n-grams of past texts, any caller's; kept in this file.",
        ),
    ] = None
    share_past_texts: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", help="Draft from so much of past texts, any caller's; 0: off."
        ),
    ] = 0

    def config(self) -> dict[str, Any]:
        """Return the arguments of OrchestratorConfig."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


Group = (
    ModelOptions
    | ServerOptions
    | HttpOptions
    | ClientOptions
    | DraftingOptions
    | JoiningOptions
    | SharingOptions
    | KeepingOptions
)


def arguments(group: Group) -> list[str]:
    """Return the command line that says what differs from the defaults of a group."""
    words = []
    for name, option in _options(type(group)).items():
        value = getattr(group, name)
        if value != option.default:
            on, _, off = _flag(name, option.info).partition("/")
            words.append(f"{on}={value}" if not isinstance(value, bool) else on if value else off)
    return words


def flags(kind: type[ModelOptions]) -> list[str]:
    """Return the names of a group's options."""
    return [flag_of(each).removeprefix("--").partition("/")[0] for each in fields(kind)]


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
        if field.metadata:
            own, said = hints[field.name], field.metadata
            info = typer.Option(flag_of(field), help=said["help"], metavar=said["metavar"] or None)
        else:
            own, info = get_args(hints[field.name])
        found[field.name] = _Field(own, info, field.default)
    return found


def _flag(name: str, info: Any, prefix: str = "") -> str:
    # In an annotation typer finds the first flag where a default would stand.
    flag = info.default if isinstance(info.default, str) else "--" + name.replace("_", "-")
    return flag.replace("--", f"--{prefix}-") if prefix else flag
