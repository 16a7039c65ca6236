"""The command that teaches a draft for a model that has none."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.help import COMMON
from outrider_cli.options import Prefix, spread
from outrider_cli.services.commands import ModelPath

if TYPE_CHECKING:
    from outrider_cli.screen import Progress
    from outrider_teach.needs import Needs
    from outrider_teach.prompts import PromptAt
    from outrider_teach.target_weights import TargetFile
    from outrider_teach.training import TrainingConfig
    from outrider_teach.work_folder import WorkFolder
    from outrider_teach.writing import Writing

_CONTEXT = 1280  # tokens of a session: the longest bundled prompt, and its answer
_DATA, _TRAINING = "What it learns from", "Training"
_OPTIONS = ModelOptions(sessions=16, numerics="native")  # nothing depends on equal bits

COMMON["teach"] = {
    "Models": ("model", "out"),
    "What it learns from": ("texts", "from-state", "watch", "tokens", "disk"),
    "Training": ("kind", "minutes", "vocabulary"),
    "Memory and threads": ("n-gpu-layers", "ctx", "sessions", "threads"),
}


class Kind(Enum):
    """What is taught."""

    HEAD = "head"
    DRAFT = "draft"

    @property
    def words(self) -> str:
        return "a head" if self is Kind.HEAD else "a draft model"


Out = Annotated[
    Path | None,
    typer.Option(
        metavar="GGUF",
        help="Where to write the head or draft model.",
        show_default="with --from-state DIR/head.gguf, where that target looks for one",
    ),
]
Texts = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Ask these prompts, not the bundled ones: .jsonl with `messages` or `prompt` in each"
        " line, or any text, which is continued; or a folder of such files. Repeatable.",
        rich_help_panel=_DATA,
    ),
]
FromState = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Learn from what a target with --keep-rows wrote there, and ask nothing.",
        rich_help_panel=_DATA,
    ),
]
WatchIt = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Go on for as long as that target writes: a lesson for every --new-tokens, at low"
        " priority, whose head takes the place of --out if it is better.",
        rich_help_panel=_DATA,
    ),
]
NewTokens = Annotated[
    int, typer.Option(help="Of --watch: tokens that a lesson waits for.", rich_help_panel=_DATA)
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where rows and checkpoints are; a run that was stopped continues there.",
        show_default="GGUF.work",
        rich_help_panel=_DATA,
    ),
]
Tokens = Annotated[
    int, typer.Option(help="Tokens of answers to learn from.", rich_help_panel=_DATA)
]
Disk = Annotated[
    str, typer.Option(metavar="SIZE", help="Rows take no more.", rich_help_panel=_DATA)
]
Answer = Annotated[int, typer.Option(help="Tokens of an answer at most.", rich_help_panel=_DATA)]
KindOf = Annotated[
    Kind | None,
    typer.Option(
        help="An EAGLE-3 head, which reads the target's layers, or a draft model of two layers.",
        rich_help_panel=_TRAINING,
        show_default="head where the target shows its layers, else draft",
    ),
]
Minutes = Annotated[float, typer.Option(help="Train no longer.", rich_help_panel=_TRAINING)]
Vocabulary = Annotated[
    int,
    typer.Option(
        help="Tokens that a head drafts, or a draft model learns most: those written most.",
        rich_help_panel=_TRAINING,
    ),
]
Tried = Annotated[
    int, typer.Option(help="Prompts to try it with in the end.", rich_help_panel=_TRAINING)
]
Seed = Annotated[int, typer.Option(help="Of prompts, texts and training.")]


@spread
def teach(
    model: ModelPath,
    out: Out = None,
    texts: Texts = None,
    from_state: FromState = None,
    watch: WatchIt = False,
    new_tokens: NewTokens = 20_000,
    work: Work = None,
    tokens: Tokens = 400_000,
    disk: Disk = "8GB",
    answer: Answer = 256,
    kind: KindOf = None,
    minutes: Minutes = 150.0,
    vocabulary: Vocabulary = 8192,
    tried: Tried = 21,
    seed: Seed = 1,
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = _OPTIONS,
) -> None:
    """Teach a head that drafts for a model, from the model's own words.

    The target answers prompts, and a head learns from what its layers read meanwhile; a small draft
    model where it does not show them. Then it is tried with the target. Stopped at any moment, the
    same command continues.
    """
    from outrider_cli.services.pair import choose_target

    _check_torch()
    _check_numbers(tokens, answer, minutes, vocabulary, tried, seed)
    model = choose_target(model)
    place = _place(out, from_state, watch)
    plan = _plan(
        _Asked(
            model=model,
            out=place,
            texts=tuple(texts or ()),
            from_state=from_state,
            watches=watch,
            new_tokens=new_tokens,
            work=work or place.with_name(f"{place.name}.work"),
            tokens=tokens,
            most_bytes=_read_disk(disk),
            answer=answer,
            kind=kind,
            minutes=minutes,
            drafted=vocabulary,
            tried=tried,
            seed=seed,
            engine=engine,
        )
    )
    with _terminated_as_interrupted():
        _run(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options, read."""

    model: Path
    out: Path
    texts: tuple[Path, ...]
    from_state: Path | None
    watches: bool
    new_tokens: int
    work: Path
    tokens: int
    most_bytes: int
    answer: int
    kind: Kind | None
    """None: a head if the target feeds one."""
    minutes: float
    drafted: int
    tried: int
    seed: int
    engine: ModelOptions

    @property
    def settings(self) -> dict[str, Any]:
        """What another run in the same folder must have, too."""
        return {
            "model": f"{self.model.name}, {self.model.stat().st_size} bytes",
            "texts": [str(path) for path in self.texts],
            "from-state": str(self.from_state or ""),
            "kind": self.kind and self.kind.value,
            "vocabulary": self.drafted,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is done, after it was checked that it can be."""

    asked: _Asked
    target: TargetFile
    layers: tuple[int, ...]
    """Those that a head reads; none: a draft model is taught."""
    needs: Needs
    folder: WorkFolder
    writing: Writing

    @property
    def rows(self) -> Path:
        """Where the rows are."""
        return self.asked.from_state or self.folder.rows

    @property
    def training(self) -> TrainingConfig:
        """How it is trained, in as many steps as are possible."""
        from outrider_teach.training import TrainingConfig

        return TrainingConfig(steps=1 << 30, drafted=self.asked.drafted, seed=self.asked.seed)


# --- before it begins ---


def _check_torch() -> None:
    from importlib.util import find_spec

    from outrider.errors import InvalidConfig
    from outrider.extensions import installing

    missing = [name for name in ("torch", "gguf") if find_spec(name) is None]
    if missing:
        raise InvalidConfig("teach", f"needs {missing[0]}: {installing('teach')}")


def _place(out: Path | None, from_state: Path | None, watch: bool) -> Path:
    """Return where the head or draft is to be written."""
    from outrider.kept_rows import HEAD_FILE

    if watch and from_state is None:
        raise typer.BadParameter("--watch needs --from-state, the --keep-rows of a served target")
    if out is None and from_state is None:
        raise typer.BadParameter("--out is missing: where to write it")
    return out or (from_state or Path()) / HEAD_FILE


def _check_numbers(
    tokens: int, answer: int, minutes: float, vocabulary: int, tried: int, seed: int
) -> None:
    """Raise InvalidConfig for an option out of its range."""
    from outrider.errors import InvalidConfig

    for name, value, low, high in (
        ("tokens", tokens, 1, 10**10),
        ("answer", answer, 8, 1 << 16),
        ("minutes", minutes, 0.01, 1e6),
        ("vocabulary", vocabulary, 64, 1 << 20),
        ("tried", tried, 0, 1000),
        ("seed", seed, 0, (1 << 31) - 1),
    ):
        if not low <= value <= high:
            raise InvalidConfig(name, f"must be in [{low}, {high}], not {value}")


def _read_disk(text: str) -> int:
    from outrider.errors import InvalidConfig
    from outrider_teach.needs import read_bytes

    found = read_bytes(text)
    if found is None:
        raise InvalidConfig("disk", f"must be a size such as 8GB, not {text!r}")
    return found


def _plan(asked: _Asked) -> _Plan:
    """Return what is to be done. Raises InvalidConfig where something is missing for it."""
    from outrider_teach.target_weights import TargetFile
    from outrider_teach.work_folder import WorkFolder

    target = TargetFile(asked.model)
    kept = _kept_layers(asked, target)
    layers = _layers(asked, target, kept)
    prompts, count = _prompts(asked)
    needs = _needs(asked, target, kept, layers)
    _check_room(asked, needs)
    if not asked.out.absolute().parent.is_dir():
        from outrider.errors import InvalidConfig

        raise InvalidConfig("out", f"there is no folder {asked.out.absolute().parent}")
    folder = WorkFolder(asked.work, asked.settings)
    writing = _writing(asked, needs, folder, prompts, count)
    return _Plan(
        asked=asked, target=target, layers=layers, needs=needs, folder=folder, writing=writing
    )


def _kept_layers(asked: _Asked, target: TargetFile) -> tuple[int, ...]:
    """Return the layers whose rows there are, or will be; none where the target shows none."""
    from outrider.engine.heads import feeds_layers, taught_layers
    from outrider.errors import InvalidConfig
    from outrider.kept_rows import Kept

    if asked.from_state is None:
        return taught_layers(target.layer_count) if feeds_layers(target.architecture) else ()
    try:
        source = Kept(asked.from_state).source
    except InvalidConfig as error:
        raise error.named("from-state") from None
    if (source.width, source.vocabulary) != (target.width, target.vocabulary):
        raise InvalidConfig("from-state", f"{asked.from_state} has rows of another model")
    return source.layers


def _layers(asked: _Asked, target: TargetFile, kept: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of the kept layers that are read: all by a head, none by a draft model."""
    from outrider.errors import InvalidConfig
    from outrider.kept_rows import HEAD_FILE

    if asked.kind is not Kind.DRAFT and kept:
        target.check_feeds(kept)
        return kept
    if asked.kind is Kind.HEAD:
        target.check_feeds((0,))
        raise InvalidConfig("kind", f"a head reads rows, and there are none of {asked.model}")
    if asked.watches:
        raise InvalidConfig("kind", "--watch teaches heads: a target takes no new draft model")
    if asked.from_state is not None and asked.out == asked.from_state / HEAD_FILE:
        raise InvalidConfig("out", "is missing: where to write the draft model")
    return ()


def _prompts(asked: _Asked) -> tuple[PromptAt, int | None]:
    """Return the prompts, and how many of the user's own there are."""
    from outrider_teach.prompts import bundled, own, read_texts

    if not asked.texts:
        return bundled(asked.seed), None
    found = read_texts(asked.texts)
    return own(found, asked.seed), len(found)


def _needs(
    asked: _Asked, target: TargetFile, kept: tuple[int, ...], layers: tuple[int, ...]
) -> Needs:
    from outrider.kept_rows import KeptSource
    from outrider_teach.needs import Needs, TargetSizes, draft_numbers, head_numbers

    shape = target.head_shape(layers)
    source = KeptSource(model="", layers=kept, width=target.width, vocabulary=target.vocabulary)
    trained = int(target.number("context_length"))
    usual = min(_CONTEXT, trained) if trained else _CONTEXT
    drafted = min(asked.drafted, target.vocabulary)
    return Needs(
        target=TargetSizes(
            name=target.name,
            layers=target.layer_count,
            width=target.width,
            vocabulary=target.vocabulary,
            file_bytes=asked.model.stat().st_size,
            cell_bytes=target.cell_bytes,
        ),
        row_bytes=source.row_bytes,
        tokens=asked.tokens if asked.from_state is None else 0,
        most_bytes=asked.most_bytes,
        sessions=asked.engine.sessions,
        context=asked.engine.context or usual,
        student=(Kind.HEAD if layers else Kind.DRAFT).words,
        numbers=head_numbers(shape, drafted) if layers else draft_numbers(shape),
        matrices=1 if layers or not target.has_output else 2,
        drafted=drafted,
        is_tried=asked.tried > 0 and not asked.watches,
    )


def _check_room(asked: _Asked, needs: Needs) -> None:
    """Raise InvalidConfig where disk or memory are too small for what is needed."""
    from outrider.errors import InvalidConfig
    from outrider.kept_rows import folder_bytes
    from outrider.memory import available_memory
    from outrider_teach.needs import show_bytes

    there = next(path for path in (asked.work, *asked.work.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free + folder_bytes(asked.work / "rows")
    if free < needs.disk:
        fault = f"needs {show_bytes(needs.disk)} of disk, of which {show_bytes(free)} are free"
        raise InvalidConfig("work", fault)
    found = available_memory()
    if found is not None and found[0] < needs.memory:
        fault = f"needs {show_bytes(needs.memory)} of memory, of which {show_bytes(found[0])}"
        raise InvalidConfig("model", f"{fault} are left: see --sessions and --ctx")


def _writing(
    asked: _Asked, needs: Needs, folder: WorkFolder, prompts: PromptAt, count: int | None
) -> Writing:
    from outrider_cli.services.local import HostedModel
    from outrider_teach.writing import Writing

    # What it says is learned from, and need not be repeated to the bit.
    numerics = asked.engine.numerics or "native"
    options = replace(asked.engine, context=needs.context, numerics=numerics)
    return Writing(
        target=HostedModel(asked.model, options),
        folder=folder.rows,
        prompts=prompts,
        prompt_count=count,
        tokens=asked.tokens,
        most_bytes=asked.most_bytes,
        token_limit=asked.answer,
        seed=asked.seed,
    )


# --- what it does ---


def _run(plan: _Plan) -> None:
    """Write, train, export and try."""
    from outrider_cli.screen import Progress

    with Progress() as progress:
        _announce(plan)
        if plan.asked.watches:
            _watch(plan, progress)
        if plan.asked.from_state is None:
            _write(plan, progress)
        _train(plan, progress)
        _return_memory()
        if plan.asked.tried:
            _try(plan, progress)
    used = f"outrider up --model {plan.asked.model} --draft-model {plan.asked.out}"
    print(f"{plan.asked.out} is written. Use it:\n\n    {used}")


def _announce(plan: _Plan) -> None:
    import torch

    from outrider_cli.terminal import say

    if plan.asked.engine.threads:
        torch.set_num_threads(plan.asked.engine.threads)
    device = "the GPU" if torch.cuda.is_available() else "the CPU"
    for line in plan.needs.lines(str(plan.folder.path), plan.asked.minutes, device):
        say(line, sys.stdout, indent=10)


def _write(plan: _Plan, progress: Progress) -> None:
    from outrider.kept_rows import folder_bytes
    from outrider_cli.screen import note
    from outrider_teach.needs import show_bytes
    from outrider_teach.writing import write

    kept = asyncio.run(write(plan.writing, progress))
    print(f"written   {kept:,} tokens, {show_bytes(folder_bytes(plan.rows))}", flush=True)
    if kept < plan.asked.tokens:
        note(f"{plan.asked.tokens:,} tokens were wanted: --disk or the prompts did not give more")


def _train(plan: _Plan, progress: Progress) -> None:
    from outrider.kept_rows import Kept
    from outrider_teach.teaching import Lesson, Teaching, split
    from outrider_teach.work_progress import duration

    asked = plan.asked
    progress.say("reading what was written")
    kept = Kept(plan.rows)
    texts, held_out = split(kept.texts)
    lesson = Lesson(
        target=plan.target,
        layers=plan.layers,
        texts=texts,
        held_out=held_out,
        folder=plan.folder.training,
        config=plan.training,
    )
    # A folder that a served target fills changes all the time.
    steps = plan.folder.steps_over(kept.answered if asked.from_state is None else None)
    teaching = Teaching(lesson)
    if steps is None:
        progress.say("timing a few steps")
        steps, seconds = teaching.steps_of(asked.minutes)
        plan.folder.begin_training(steps, kept.answered)
        progress.clear()
        some = f"{steps:,} step{'' if steps == 1 else 's'} of {seconds:.2f} s"
        print(f"training  {some}: {duration(steps * seconds)}", flush=True)
    if not teaching.run(steps, progress):
        raise KeyboardInterrupt
    print(*teaching.export(asked.out), sep="\n", flush=True)


def _return_memory() -> None:
    """Give back what the training took, where C's allocator keeps it: 600 MB of 1.1 GB here."""
    import ctypes
    import gc

    gc.collect()
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def _watch(plan: _Plan, progress: Progress) -> None:
    """Teach lesson after lesson until Ctrl-C."""
    from outrider_teach.watching import Watch, Watcher

    asked = plan.asked

    def say(line: str) -> None:
        progress.clear()
        print(line, flush=True)

    watch = Watch(
        target=plan.target,
        rows=plan.rows,
        head=asked.out,
        folder=plan.folder,
        config=plan.training,
        minutes=asked.minutes,
        tokens=asked.tokens,
        new_tokens=asked.new_tokens,
    )
    Watcher(watch, say, progress).run()


def _try(plan: _Plan, progress: Progress) -> None:
    from outrider_cli.screen import note
    from outrider_teach.prompts import bundled
    from outrider_teach.trying import held_out_prompts, lines_of, table, try_draft

    asked, writing = plan.asked, plan.writing
    prompts = held_out_prompts(writing.prompts, asked.tried, writing.prompt_count)
    if not prompts:
        note("none of the prompts is held out: it is tried with bundled ones")
        prompts = held_out_prompts(bundled(asked.seed), asked.tried, None)
    options = replace(asked.engine, context=plan.needs.context, sessions=1)
    target = replace(writing.target, options=options)
    work = try_draft(target, asked.out, prompts, progress)
    print("", *table(lines_of(asyncio.run(work))), "", sep="\n", flush=True)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: services are stopped, and what is there stays."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
