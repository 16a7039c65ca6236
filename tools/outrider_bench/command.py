"""The command that measures what speculating yields on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.generate.command import ONE_SESSION
from outrider_cli.help import COMMON
from outrider_cli.options import Prefix, spread
from outrider_cli.services.pair import (
    DraftModel,
    TargetModel,
    choose_draft,
    choose_target,
    host_draft,
)

if TYPE_CHECKING:
    from outrider_bench.machine import Machine
    from outrider_bench.prompts import Tasks
    from outrider_bench.report import Measured
    from outrider_bench.run import PairResult
    from outrider_bench.settings import Settings
    from outrider_cli.services.local import HostedModel

_PAGE = 120  # columns, where there is no terminal
_SAMPLING, _WORK, _PEER, _OUTPUT = "Sampling", "What to run", "Peer", "Output"
_NUMBERS = "N,N,..."

COMMON["bench"] = {
    "Models": ("model", "draft-model", "pair"),
    "What to run": ("users", "prompts", "tokens", "temperature", "prompt-file"),
    "Memory and threads": ("n-gpu-layers", "ctx", "threads"),
    "Output": ("json",),
}

Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pair",
        metavar="GGUF:GGUF",
        help="A target and its draft, in place of --model and --draft-model. Repeatable.",
    ),
]
Variants = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME,...",
        help="Of plain, serial, ahead, measured, classic, match, rejection, "
        "only:DRAFTER+... and lines:N.",
        show_default="all; greedy: no rules",
        rich_help_panel=_WORK,
    ),
]
DraftLengths = Annotated[
    str,
    typer.Option(
        metavar=_NUMBERS, help="Draft lengths to compare; empty: none.", rich_help_panel=_WORK
    ),
]
Users = Annotated[
    str,
    typer.Option(
        metavar=_NUMBERS,
        help="Generations at once. The draft lengths run with the first number only.",
        rich_help_panel=_WORK,
    ),
]
RoundTrips = Annotated[
    str,
    typer.Option(
        metavar="MS,MS,...",
        help="Also with this round trip to the draft; needs root and a checkout.",
        show_default="none",
        rich_help_panel=_WORK,
    ),
]
TargetRoundTrips = Annotated[
    str,
    typer.Option(
        metavar="MS,MS,...",
        help="Also with this round trip to the target; needs the same.",
        show_default="none",
        rich_help_panel=_WORK,
    ),
]
Apart = Annotated[
    bool,
    typer.Option(
        "--apart",
        help="Each service on cores of its own, as on separate machines; the peer on the target's.",
        rich_help_panel=_WORK,
    ),
]
BesideNumerics = Annotated[
    str,
    typer.Option(
        metavar="PROFILE,...",
        help="Also with a target under these numerics: exact, native.",
        show_default="none",
        rich_help_panel=_WORK,
    ),
]
Repetitions = Annotated[
    int,
    typer.Option(
        "--prompts", help="Repetitions: prompts per variant and user.", rich_help_panel=_WORK
    ),
]
Tokens = Annotated[int, typer.Option(help="Tokens to generate.", rich_help_panel=_WORK)]
PromptTokens = Annotated[int, typer.Option(help="Tokens of a prompt.", rich_help_panel=_WORK)]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A text to take the prompts from.",
        show_default="random tokens",
        rich_help_panel=_WORK,
    ),
]
TasksOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE:KIND",
        help="Prompts that model_making.copying wrote, each for all variants, not random ones.",
        show_default="none",
        rich_help_panel=_WORK,
    ),
]
Temperature = Annotated[float, typer.Option(help="0: greedy.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option(help="0: off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option(help="1: off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float, typer.Option(help="0: off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[int, typer.Option(help="Of prompts, orders and texts.", rich_help_panel=_SAMPLING)]
Peer = Annotated[
    str | None,
    typer.Option(
        metavar="llama-server=PATH",
        help="Run this program on the same models in turn with ours.",
        rich_help_panel=_PEER,
    ),
]
PeerDraftLengths = Annotated[
    str,
    typer.Option(
        metavar=_NUMBERS, help="One process each, and one without a draft.", rich_help_panel=_PEER
    ),
]
PeerDrafters = Annotated[
    str,
    typer.Option(
        metavar="NAME/SIZE+NAME,...",
        help="One process for each of its drafters; all: all; grid: in some sizes.",
        show_default="none",
        rich_help_panel=_PEER,
    ),
]
PeerOptions = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="More options of it, such as '--flash-attn off'.",
        rich_help_panel=_PEER,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write everything there.", rich_help_panel=_OUTPUT),
]
Plots = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Draw PNG files there; needs matplotlib.", rich_help_panel=_OUTPUT
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print all tables: latency, acceptance, CPU and theory too.",
        rich_help_panel=_OUTPUT,
    ),
]


@spread
def bench(
    model: TargetModel = None,
    draft_model: DraftModel = None,
    pair: Pairs = None,
    variants: Variants = "",
    draft_lengths: DraftLengths = "1,2,3,4,6,8",
    users: Users = "1",
    round_trips: RoundTrips = "",
    target_round_trips: TargetRoundTrips = "",
    apart: Apart = False,
    beside_numerics: BesideNumerics = "",
    prompts: Repetitions = 10,
    tokens: Tokens = 256,
    prompt_tokens: PromptTokens = 64,
    prompt_file: PromptFile = None,
    tasks: TasksOption = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = 1,
    peer: Peer = None,
    peer_draft_lengths: PeerDraftLengths = "2,3,4,7",
    peer_drafters: PeerDrafters = "",
    peer_options: PeerOptions = "",
    json_file: Json = None,
    plots: Plots = None,
    verbose: Verbose = False,
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = ONE_SESSION,
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ONE_SESSION,
) -> None:
    """Measure what drafts gain on this machine, against the target alone.

    The variants run interleaved, each time in another order and each on a prompt of its own, so
    that a slow minute hits all alike. Leave the machine alone meanwhile.
    """
    from outrider.sampling import SamplingParameters
    from outrider_bench.settings import Settings
    from outrider_bench.variants import length_variants, named_variants

    _check_counts(prompts=(prompts, 1), tokens=(tokens, 2), prompt_tokens=(prompt_tokens, 2))
    _check_files(prompt_file, json_file, plots)
    sampling = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    settings = Settings(
        variants=tuple(named_variants(_names(variants), sampling.greedy)),
        lengths=tuple(length_variants(read_numbers("draft_lengths", draft_lengths, 1))),
        users=tuple(read_numbers("users", users, 1)) or (1,),
        round_trips_ms=tuple(read_numbers("round_trips", round_trips, 0)),
        repetitions=prompts,
        token_limit=tokens,
        prompt_tokens=prompt_tokens,
        prompt_file=prompt_file,
        tasks=_read_tasks(tasks),
        sampling=sampling,
        seed=seed,
    )
    settings = _with_peer(settings, peer, peer_draft_lengths, peer_drafters, peer_options)
    settings, notes = _elsewhere(settings, target_round_trips, apart, beside_numerics)
    hosted = list(_hosted(_read_pairs(pair, model, draft_model), settings, engine, draft_engine))
    _run(settings, hosted, notes, json_file, plots, verbose)


def _check_counts(**counts: tuple[int, int]) -> None:
    """Raise InvalidRequest for a count below its bound."""
    from outrider.errors import InvalidRequest

    for name, (value, bound) in counts.items():
        if value < bound:
            raise InvalidRequest(name, f"must be at least {bound}, not {value}")


def _check_files(prompts: Path | None, json_file: Path | None, plots: Path | None) -> None:
    """Raise InvalidConfig for what could not be read or written in the end."""
    from outrider.errors import InvalidConfig
    from outrider_bench.plots import check_matplotlib

    if prompts is not None and not prompts.is_file():
        raise InvalidConfig("prompt-file", f"there is no file {prompts}")
    if json_file is not None and not json_file.parent.is_dir():
        raise InvalidConfig("json", f"there is no folder {json_file.parent}")
    if plots is not None:
        check_matplotlib()


def _without_impossible(settings: Settings) -> tuple[Settings, list[str]]:
    """Return what can be measured here, and notes on what cannot."""
    from outrider_bench.shaper import why_not

    if (settings.round_trips_ms or settings.target_round_trips_ms) and (reason := why_not()):
        note = f"round trips were not measured: {reason}"
        return replace(settings, round_trips_ms=(), target_round_trips_ms=()), [note]
    return settings, []


def _with_peer(
    settings: Settings, peer: str | None, lengths: str, drafters: str, options: str
) -> Settings:
    """Return the settings with what runs in turn with ours."""
    from outrider_bench.llama_server import check_binary
    from outrider_bench.peer_drafters import read_peer_drafters
    from outrider_bench.variants import peer_variants

    swept = read_numbers("peer_draft_lengths", lengths, 1)
    named = read_peer_drafters(_names(drafters))
    return replace(
        settings,
        peer=check_binary(peer) if peer else None,
        peer_variants=tuple(peer_variants(swept, named)),
        peer_options=_split(options),
    )


def _elsewhere(
    settings: Settings, target_round_trips: str, apart: bool, numerics: str
) -> tuple[Settings, list[str]]:
    """Return the settings with where else, and how else, the target is to run; and notes."""
    return _without_impossible(
        replace(
            settings,
            target_round_trips_ms=tuple(read_numbers("target_round_trips", target_round_trips, 0)),
            cores=_own_cores() if apart else {},
            numerics=_read_numerics(numerics),
        )
    )


def _read_tasks(text: str | None) -> Tasks | None:
    """Return what `FILE:KIND` names. Raises InvalidRequest."""
    from outrider.errors import InvalidRequest
    from outrider_bench.prompts import Tasks

    if text is None:
        return None
    path, colon, kind = text.rpartition(":")
    if not colon or not Path(path).is_file():
        raise InvalidRequest("tasks", f"must be FILE:KIND, such as tasks.json:rewrite, not {text}")
    return Tasks(Path(path), kind)


def _own_cores() -> dict[str, list[int]]:
    """Return the cores of each service. Raises InvalidConfig where they cannot be kept apart."""
    from outrider.errors import InvalidConfig
    from outrider_bench.cores import own_cores, why_not_apart

    if reason := why_not_apart():
        raise InvalidConfig("apart", f"is not possible here: {reason}")
    cores = own_cores()
    assert cores is not None
    return cores


def _names(text: str) -> list[str]:
    """Return the names of `one,two`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _read_numerics(text: str) -> tuple[str, ...]:
    """Return the numerics of `exact,native`, each once. Raises InvalidRequest."""
    from outrider.engine.model import Numerics
    from outrider.errors import InvalidRequest

    names = dict.fromkeys(_names(text))
    for name in names:
        if name not in {each.value for each in Numerics}:
            raise InvalidRequest("beside_numerics", f"has {name}, neither exact nor native")
    return tuple(names)


def read_numbers(name: str, text: str, least: int) -> list[int]:
    """Return the numbers of `1,2,3`, each once. Raises InvalidRequest."""
    from outrider.errors import InvalidRequest

    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidRequest(name, f"is not numbers such as 1,2,3: {text}") from None
    if any(number < least for number in numbers):
        raise InvalidRequest(name, f"must be at least {least}, not {min(numbers)}")
    return list(dict.fromkeys(numbers))


def _split(text: str) -> tuple[str, ...]:
    """Return words as a shell would read them. Raises InvalidRequest for an open quotation."""
    from outrider.errors import InvalidRequest

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidRequest("peer_options", f"{error}: {text}") from None


def _read_pairs(
    given: list[str] | None, model: Path | None, draft_model: Path | None
) -> Iterator[tuple[Path, Path]]:
    """Yield target and draft of every pair. Raises InvalidConfig for files that are not there."""
    if given and (model or draft_model):
        raise typer.BadParameter("--pair excludes --model and --draft-model")
    if not given:
        own = choose_draft(model, draft_model)
        if own is None:
            raise typer.BadParameter("--model needs --draft-model: pairs are measured")
        yield choose_target(model), own
    for text in given or ():
        target, draft = _split_pair(text)
        yield choose_target(target), choose_target(draft)


def _split_pair(text: str) -> tuple[Path, Path]:
    """Return target and draft, paths or names on Hugging Face, which have colons of their own."""
    found = re.fullmatch(r"(hf:[^:]+(?::(?!hf:)[^:/]+)?|[^:]+):(.+)", text)
    if found is None:
        raise typer.BadParameter(f"--pair takes TARGET.gguf:DRAFT.gguf, not {text}")
    return Path(found[1]), Path(found[2])


def _hosted(
    pairs: Iterable[tuple[Path, Path]],
    settings: Settings,
    engine: ModelOptions,
    draft_engine: ModelOptions,
) -> Iterator[tuple[HostedModel, HostedModel]]:
    """Yield what to start for every pair, with a session per user."""
    from outrider_cli.services.local import HostedModel

    most = max(settings.users)
    target_options = replace(engine, sessions=max(engine.sessions, most))
    draft_options = replace(draft_engine, sessions=max(draft_engine.sessions, most))
    for target, draft in pairs:
        yield HostedModel(target, target_options), host_draft(draft, draft_options, engine)


def _run(
    settings: Settings,
    pairs: Sequence[tuple[HostedModel, HostedModel]],
    notes: list[str],
    json_file: Path | None,
    plots: Path | None,
    shows_all: bool,
) -> None:
    """Measure all pairs, and report what was measured even if something ends it."""
    from outrider_bench.machine import describe_machine, load_average
    from outrider_bench.run import PairResult, run_pair
    from outrider_cli.cpu_time import OthersClock
    from outrider_cli.screen import Progress

    before, others, progress = load_average(), OthersClock(), Progress()
    results: list[PairResult] = []
    complete = False
    try:
        for target, draft in pairs:
            results.append(PairResult(target=target.model, draft=draft.model))
            asyncio.run(run_pair(settings, target, draft, results[-1], progress))
        complete = True
    finally:
        progress.clear()
        if not complete:
            notes.append("the run did not end; these are the figures until then")
        machine = replace(
            describe_machine(),
            load_before=before,
            load_after=load_average(),
            others_share=others.share(),
        )
        measured = [result for result in results if any(b.turns for b in result.blocks)]
        if measured:
            _report(settings, machine, measured, notes, json_file, plots, shows_all)


def _report(
    settings: Settings,
    machine: Machine,
    results: Sequence[PairResult],
    notes: Sequence[str],
    json_file: Path | None,
    plots: Path | None,
    shows_all: bool,
) -> None:
    """Print the tables and the verdicts, and write what else is wanted."""
    from outrider_bench import report
    from outrider_bench.document import document
    from outrider_bench.plots import draw, make_plots

    width = shutil.get_terminal_size((_PAGE, 24)).columns
    pairs = [(result, _measured(settings, result)) for result in results]
    lines = report.run_lines(settings, machine)
    for result, blocks in pairs:
        shown = report.pair_lines(result, blocks, settings.token_limit, width, shows_all)
        lines += ["", *shown]
    of_all = [blocks for _, blocks in pairs]
    lines += ["", *report.legend_lines(of_all, shows_all), *report.beware_lines(machine, notes), ""]
    for result, blocks in pairs:
        lines += [f"{result.target.name}:"] if len(pairs) > 1 else []
        lines += report.verdict_lines(blocks)
    for line in lines:
        print(line)
    if json_file is not None:
        written = document(sys.argv, machine, settings, pairs, notes)
        json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if plots is not None:
        for result, blocks in pairs:
            names = (result.target.stem, result.draft.stem)
            prefix = "".join(f"{name}-" for name in names) if len(pairs) > 1 else ""
            draw(make_plots(blocks), ", ".join(names), plots, prefix)


def _measured(settings: Settings, result: PairResult) -> list[Measured]:
    """Return the figures of every block that has any."""
    from outrider_bench.figures import summarize_block
    from outrider_bench.report import Measured
    from outrider_bench.variants import NAMED, numerics_variants

    others = [each for profile in settings.numerics for each in numerics_variants(profile)]
    named = {**NAMED, **{each.name: each for each in settings.variants}}
    known = (*named.values(), *settings.lengths, *others, *settings.peer_variants)
    return [
        Measured(block, summarize_block(known, block, settings.token_limit))
        for block in result.blocks
        if block.turns
    ]
