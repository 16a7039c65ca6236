"""Groups of options: from dataclasses to a command line, and from a command line back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelConfig, ModelOptions
from outrider.rpc.security import ClientSecurity, ServerSecurity
from outrider_cli import run, settings
from outrider_cli.app import app
from outrider_cli.options import (
    ClientOptions,
    HttpOptions,
    Prefix,
    ServerOptions,
    SharingOptions,
    arguments,
    spread,
)
from outrider_cli.services import commands

Group = ModelOptions | ServerOptions | HttpOptions | ClientOptions | SharingOptions

OTHER: dict[type, dict[str, Any]] = {  # for every field a value that is not its default
    ModelOptions: {
        "alias": "a name, with --dashes = and spaces",
        "n_gpu_layers": 3,
        "main_gpu": 1,
        "tensor_split": "3,1",
        "threads": 2,
        "threads_batch": 3,
        "batch": 128,
        "context": 256,
        "sessions": 7,
        "numa": "isolate",
        "mmap": True,
        "mlock": True,
        "cache_type_k": "q8_0",
        "cache_type_v": "f32",
        "swa_full": True,
        "snapshots": 2,
        "nice": 5,
        "embeddings": True,
        "hidden_rows": True,
        "kv_cache": "pool",
        "flash_attention": "on",
        "cpu_kernels": "zen4",
        "numerics": "native",
    },
    ServerOptions: {
        "allow_remote": True,
        "token_file": Path("a token"),
        "tokens": Path("tokens.toml"),
        "tls_cert": Path("cert.pem"),
        "tls_key": Path("--key.pem"),
        "tls_client_ca": Path("ca.pem"),
        "grace": 0.25,
        "stall_timeout": 7.5,
        "reflection": True,
        "traces": "grpc://127.0.0.1:4317",
        "log_level": "debug",
        "stop_on_stdin_end": True,
    },
    HttpOptions: {
        "http": "127.0.0.1:8080",
        "http_key_file": Path("a key"),
        "http_cors": "https://a.example,https://b.example",
        "http_hosts": "box.lan,box",
        "http_slots": True,
        "http_body_limit": 1000,
        "http_keep_alive": 90,
        "metrics_names": "vllm,llamacpp",
    },
    ClientOptions: {
        "token_file": Path("token"),
        "tls_ca": Path("ca.pem"),
        "tls_cert": Path("cert.pem"),
        "tls_key": Path("key.pem"),
        "no_pings": True,
    },
    SharingOptions: {
        "lookup_cache_static": Path("static.bin"),
        "lookup_cache_dynamic": Path("dynamic.bin"),
        "share_past_texts": 1000,
    },
}
EVERY_FIELD = [(kind, name) for kind, values in OTHER.items() for name in values]


def parsed(kind: type, words: list[str], default: Any = None, prefix: str = "") -> Any:
    """Return the group that a command with such options gets from a command line."""
    got = []

    def command(group: Any) -> None:
        got.append(group)

    command.__annotations__["group"] = Annotated[kind, Prefix(prefix)] if prefix else kind
    command.__defaults__ = (kind() if default is None else default,)
    one = typer.Typer()
    one.command()(spread(command))
    one(words, standalone_mode=False)
    return got[0]


def options_of(name: str) -> dict[str, Any]:
    """Return the options of one of our commands, by flag."""
    return settings.options(settings.commands(typer.main.get_command(app))[name])


# --- there and back ---


def test_the_other_values_are_of_every_field():
    for kind, values in OTHER.items():
        assert values.keys() == {field.name for field in fields(kind)}
        assert not set(values.items()) & {(f.name, f.default) for f in fields(kind)}


@pytest.mark.parametrize("kind", OTHER)
def test_no_words_are_the_defaults(kind: type):
    assert arguments(kind()) == []
    assert parsed(kind, []) == kind()


@pytest.mark.parametrize(("kind", "name"), EVERY_FIELD)
def test_the_words_of_one_field_give_that_field_back(kind: type, name: str):
    group = kind(**{name: OTHER[kind][name]})
    assert len(arguments(group)) == 1
    assert parsed(kind, arguments(group)) == group


@pytest.mark.parametrize("kind", OTHER)
def test_the_words_of_all_fields_give_all_back(kind: type):
    group = kind(**OTHER[kind])
    assert len(arguments(group)) == len(fields(kind))
    assert parsed(kind, arguments(group)) == group


def test_words_are_against_the_defaults_of_the_group_and_not_of_a_command():
    assert arguments(ModelOptions(nice=19)) == ["--nice=19"]
    assert arguments(ModelOptions(nice=-1)) == []


@pytest.mark.parametrize(("role", "kind"), [("target", ModelOptions), ("draft", ServerOptions)])
def test_a_service_takes_the_words_that_are_written_for_it(role: str, kind: type):
    # `up` and `generate` start the services with these.
    flags = {word.partition("=")[0] for word in arguments(kind(**OTHER[kind]))}
    assert flags <= {f"--{key}" for key in options_of(role)}


# --- instances and prefixes ---


@pytest.mark.parametrize("name", OTHER[ModelOptions])
def test_a_prefix_stands_before_every_flag(name: str):
    group = ModelOptions(**{name: OTHER[ModelOptions][name]})
    words = [word.replace("--", "--draft-", 1) for word in arguments(group)]
    assert parsed(ModelOptions, words, prefix="draft") == group


def test_an_instance_gives_the_defaults_of_a_command():
    default = ModelOptions(threads=3, mmap=False)
    assert parsed(ModelOptions, [], default) == default
    assert parsed(ModelOptions, ["--nice", "4"], default) == replace(default, nice=4)
    assert parsed(ModelOptions, ["--threads", "0"], default) == replace(default, threads=0)


def test_two_groups_of_one_kind_do_not_mix():
    got = []

    @spread
    def command(
        name: str,
        ours: ModelOptions = ModelOptions(sessions=1),
        theirs: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ModelOptions(nice=5),
    ) -> None:
        got.append((name, ours, theirs))

    one = typer.Typer()
    one.command()(command)
    words = ["n", "--ctx=5", "--draft-ctx=6", "--mlock", "--draft-no-mmap", "--draft-nice=1"]
    one(words, standalone_mode=False)
    assert got == [
        (
            "n",
            ModelOptions(sessions=1, context=5, mlock=True),
            ModelOptions(context=6, mmap=False, nice=1),
        )
    ]


def test_a_group_without_a_default_has_its_fields_defaults():
    got = []

    @spread
    def command(group: ClientOptions) -> None:
        got.append(group)

    one = typer.Typer()
    one.command()(command)
    one([], standalone_mode=False)
    assert got == [ClientOptions()]


def test_a_command_without_groups_is_what_it_was():
    def command(a: int, b: str = "x") -> None:
        """Say something."""

    assert spread(command).__doc__ == command.__doc__
    assert spread(command).__annotations__ == {"a": int, "b": str}


# --- the real commands ---

COMMANDS = list(settings.commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_share_a_flag(name: str):
    command = settings.commands(typer.main.get_command(app))[name]
    flags = [flag for parameter in command.params for flag in parameter.opts]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("name", ["generate", "up"])
def test_a_command_with_two_models_has_every_option_of_a_model_twice(name: str):
    words = arguments(ModelOptions(**OTHER[ModelOptions]))
    flags = {word.partition("=")[0].removeprefix("--") for word in words}
    found = options_of(name)
    assert flags | {f"draft-{flag}" for flag in flags} <= found.keys()
    assert {found[flag].rich_help_panel for flag in flags} == {"Target"}
    assert {found[f"draft-{flag}"].rich_help_panel for flag in flags} == {"Draft"}


def test_a_service_of_one_model_has_one_panel():
    assert {option.rich_help_panel for option in options_of("draft").values()} == {None}


def test_a_targets_own_draft_has_a_panel_of_its_own():
    panels = {name: option.rich_help_panel for name, option in options_of("target").items()}
    assert {name for name, panel in panels.items() if panel == "Own draft"} >= {"draft-threads"}
    assert panels["threads"] is None


# --- what they stand for ---


@pytest.mark.parametrize(
    ("words", "uses_head", "draft"),
    [
        ((), True, None),
        (("--draft-model", "d.gguf"), False, Path("d.gguf")),
        (("--no-own-draft",), False, None),
        (("--spec-type", "none", "-md", "d.gguf"), False, None),
        (("--spec-type", "draft-mtp"), True, None),
    ],
)
def test_a_target_drafts_with_its_head_or_the_file_that_is_named_or_not_at_all(
    words: Sequence[str], uses_head: bool, draft: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(commands, "serve", lambda role, config, run: served.append(config))
    assert run(["target", "--model", "m.gguf", *words]) == 0
    [config] = served
    assert config.model.mtp is uses_head
    assert (config.draft and config.draft.model) == draft


def test_model_options_become_the_configuration_of_a_service():
    other = OTHER[ModelOptions] | {"tensor_split": ""}
    config = ModelOptions(**other).config(Path("m.gguf"))
    plain = ModelOptions().config(Path("m.gguf"))
    assert plain == ModelConfig(model=Path("m.gguf"))
    assert (config.mmap, config.context, config.cache_type_k) == (True, 256, "q8_0")
    same = [field.name for field in fields(ModelConfig)]
    changed = {name for name in same if getattr(config, name) != getattr(plain, name)}
    assert changed == {*OTHER[ModelOptions]} - {"tensor_split"}


def test_server_options_become_the_configuration_of_a_server():
    files = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_client_ca": Path("ca")}
    options = ServerOptions(allow_remote=True, token_file=Path("t"), grace=2.0, **files)
    config = options.config("127.0.0.1:1")
    assert (config.listen, config.grace_seconds, config.reflection) == ("127.0.0.1:1", 2.0, False)
    security = ServerSecurity(allow_remote=True, token_file=Path("t"), **files)
    assert config.security == security


def test_client_options_become_what_a_channel_needs():
    assert ClientOptions().security() == ClientSecurity()
    shown = ClientOptions(**OTHER[ClientOptions])
    assert shown.security() == ClientSecurity(**OTHER[ClientOptions])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stall_timeout_that_would_end_every_stream_or_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidConfig, match="stall-timeout"):
        ServerOptions(stall_timeout=seconds).config("127.0.0.1:0")
