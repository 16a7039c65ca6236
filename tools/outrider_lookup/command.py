"""The commands that make n-gram caches and say what they would draft."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider_cli.help import Command, Group, help_of
from outrider_cli.hub.models import model_file
from outrider_cli.services.commands import ModelPath

if TYPE_CHECKING:
    from outrider.drafters.ngram_cache import NgramCache
    from outrider.engine.llama_loading import FileTokens

_STEP = 1 << 16  # tokens counted between two reports

TextFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="The text; else standard input, if piped."),
]
TextPrompt = Annotated[
    str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The text itself.")
]
Escape = Annotated[
    bool,
    typer.Option(
        "--escape/--no-escape",
        "-e",
        help="Read \\n, \\t, \\x41 ... in the text as what they mean, as llama.cpp does.",
    ),
]
StaticCache = Annotated[
    Path | None,
    typer.Option("--lookup-cache-static", "-lcs", metavar="FILE", help="Of a large text."),
]
DynamicCache = Annotated[
    Path | None,
    typer.Option(
        "--lookup-cache-dynamic",
        "-lcd",
        metavar="FILE",
        help="Of past texts; made of this text if it is missing.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def create(
    model: ModelPath,
    lookup_cache_static: Annotated[
        Path,
        typer.Option("--lookup-cache-static", "-lcs", metavar="FILE", help="Where to save it."),
    ],
    file: TextFile = None,
    prompt: TextPrompt = None,
    escape: Escape = True,
    as_json: Json = False,
) -> None:
    """Make a static n-gram cache of a text: of each two tokens, what followed them.

    Of the model only the vocabulary is loaded. The file is llama.cpp's.
    """
    from outrider.drafters.ngram_cache import STATIC_SIZE, NgramCache
    from outrider_lookup.progress import TimeLeft

    tokens = _tokens(model, file, prompt, escape)
    cache, tail, ids = NgramCache(), b"", tokens.token_ids
    with TimeLeft("lookup create", len(ids), perf_counter) as progress:
        for start in range(0, len(ids), _STEP):
            tail = cache.count(tail, ids[start : start + _STEP], (STATIC_SIZE,))
            progress.report(min(start + _STEP, len(ids)))
    _save(cache, lookup_cache_static, "lookup-cache-static")
    tell_saved(cache, lookup_cache_static, as_json, n_input=len(ids))


def merge(
    files: Annotated[
        list[Path], typer.Argument(metavar="PART... MERGED", help="Caches, and where to save all.")
    ],
    as_json: Json = False,
) -> None:
    """Add up n-gram caches of one vocabulary; MERGED may be one of them."""
    from outrider.drafters.ngram_cache import NgramCache

    if len(files) < 2:
        raise typer.BadParameter("merge needs a cache to read and a place to save")
    *parts, place = files
    merged = NgramCache()
    for part in parts:
        merged.merge(_load(part, "merge"))
    _save(merged, place, "merge")
    tell_saved(merged, place, as_json, n_files=len(parts))


def stats(
    model: ModelPath,
    file: TextFile = None,
    prompt: TextPrompt = None,
    escape: Escape = True,
    context: Annotated[
        int,
        typer.Option(
            "--ctx",
            "-c",
            "--ctx-size",
            help="Tokens of a piece, up to the next multiple of 256; 0: the trained context.",
        ),
    ] = 0,
    n_draft: Annotated[
        int,
        typer.Option("--n-draft", "--spec-draft-n-max", help="Draft at most so many tokens."),
    ] = 3,
    lookup_cache_static: StaticCache = None,
    lookup_cache_dynamic: DynamicCache = None,
    as_json: Json = False,
) -> None:
    """Say how much of a text n-gram caches would draft, and how much of that is right.

    Of the model only the vocabulary is loaded. The text is drafted in pieces, each from its own
    n-grams, then those of the pieces before and of the dynamic cache, then the static one.
    """
    from outrider.errors import InvalidRequest
    from outrider_lookup.progress import TimeLeft
    from outrider_lookup.stats import LookupFigures, figure_lines, figure_object, simulate

    if n_draft < 0:
        raise InvalidRequest("n_draft", f"must be at least 0, not {n_draft}")
    tokens = _tokens(model, file, prompt, escape)
    piece = _piece_length(context, tokens.trained_context)
    figures = LookupFigures(len(tokens.token_ids), piece, n_draft)
    start = perf_counter()
    static = _load_if_named(lookup_cache_static, "lookup-cache-static", tokens.token_count)
    dynamic = _load_if_named(
        lookup_cache_dynamic, "lookup-cache-dynamic", tokens.token_count, may_miss=True
    )
    figures.t_draft_flat = perf_counter() - start
    with TimeLeft("lookup stats", figures.n_predict, perf_counter) as progress:
        simulate(tokens.token_ids, figures, dynamic, static, perf_counter, progress.report)
    if lookup_cache_dynamic is not None and not lookup_cache_dynamic.exists():
        _save(dynamic, lookup_cache_dynamic, "lookup-cache-dynamic")
    if as_json:
        print(json.dumps(figure_object(figures)))
        return
    print(*figure_lines(figures), sep="\n")
    tell_limits(figures.n_input, piece, figures.n_tied)


def tell_limits(token_count: int, piece: int, tied: int) -> None:
    """Say what the figures alone would hide."""
    from outrider_cli.screen import note

    if token_count <= piece:
        note(f"nothing was drafted: {token_count} tokens do not fill a piece of {piece} (--ctx)")
    if tied:
        note(f"{tied} of the drafted tokens had an equal; llama.cpp may draft another there")


def _tokens(model: Path, file: Path | None, prompt: str | None, escape: bool) -> FileTokens:
    """Return the text in tokens."""
    from outrider_lookup.texts import read_text, unescaped

    if file is not None and prompt is not None:
        raise typer.BadParameter("--file and --prompt exclude each other")
    text = read_text(file, prompt)

    from outrider.engine.llama_loading import tokenize

    return tokenize(model_file("model", model), unescaped(text) if escape else text)


def _piece_length(context: int, trained: int) -> int:
    """Return the tokens of a piece: what llama.cpp makes of the context that is asked for."""
    from outrider.engine.llama_loading import MOST_CELLS, cells_of
    from outrider.errors import InvalidRequest

    if not 0 <= context <= MOST_CELLS - 256:
        raise InvalidRequest("ctx", f"must be in [0, {MOST_CELLS - 256}], not {context}")
    if not context and not trained:
        raise InvalidRequest("ctx", "must be given: the model does not say its trained context")
    return cells_of(context or trained)


# --- files ---


def _load_if_named(
    path: Path | None, option: str, token_count: int, may_miss: bool = False
) -> NgramCache:
    """Return the cache of a file, or an empty one where none is named."""
    from outrider.drafters.ngram_cache import NgramCache

    if path is None or (may_miss and not path.exists()):
        return NgramCache()
    return _load(path, option, token_count)


def _load(path: Path, option: str, token_count: int | None = None) -> NgramCache:
    """Return the cache of a file. Raises InvalidRequest by the option's name."""
    from outrider.drafters.ngram_file import load_cache
    from outrider.drafters.ngram_format import ANY_TOKEN
    from outrider.errors import InvalidRequest
    from outrider_lookup.progress import TimeLeft

    size = path.stat().st_size if path.is_file() else 0
    with TimeLeft(f"reading {path.name}", size, perf_counter) as progress:
        try:
            return load_cache(path, token_count or ANY_TOKEN, report=progress.report)
        except InvalidRequest as error:
            raise error.named(option) from None


def _save(cache: NgramCache, path: Path, option: str) -> None:
    """Save a cache. Raises InvalidRequest by the option's name."""
    from outrider.drafters.ngram_file import save_cache
    from outrider.errors import InvalidRequest

    try:
        save_cache(cache, path)
    except InvalidRequest as error:
        raise error.named(option) from None


def tell_saved(cache: NgramCache, path: Path, as_json: bool, **counts: int) -> None:
    """Say what a file now holds."""
    found: dict[str, Any] = {"file": str(path), **counts}
    found |= {"n_ngrams": len(cache), "n_pairs": cache.pair_count}
    if as_json:
        print(json.dumps(found))
    else:
        print(f"{path}: {len(cache):,} n-grams, {cache.pair_count:,} continuations")


lookup = typer.Typer(
    cls=Group, no_args_is_help=True, help="Make n-gram caches, and say what they would draft."
)
for command in (create, merge, stats):
    lookup.command(cls=Command, help=help_of(command))(command)
