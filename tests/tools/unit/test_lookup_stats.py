"""`outrider lookup` counts as llama.cpp's lookup programs do, and reads texts as they do."""

from __future__ import annotations

import io
import sys
from itertools import count
from pathlib import Path

import pytest

from outrider.drafters.ngram_cache import NgramCache
from outrider.errors import InvalidRequest
from outrider_lookup.progress import TimeLeft
from outrider_lookup.stats import LookupFigures, figure_lines, figure_object, simulate
from outrider_lookup.texts import read_text, unescaped
from tests.support.repeating import golden_tokens, repeating_tokens


def figures_of(
    token_ids: list[int], n_ctx: int, n_draft: int, static: NgramCache, dynamic: NgramCache
) -> LookupFigures:
    figures = LookupFigures(len(token_ids), n_ctx, n_draft)
    ticks = count()
    simulate(token_ids, figures, dynamic, static, lambda: next(ticks) * 1e-6, lambda _: None)
    return figures


@pytest.mark.parametrize(
    ("n_ctx", "n_draft", "with_static", "expected"),
    [
        (256, 3, False, (2816, 2146, 1939)),
        (256, 8, False, (2816, 2902, 2301)),
        (512, 5, True, (2560, 2311, 2076)),
        (1500, 5, False, (3000, 1220, 1124)),
    ],
)
def test_the_figures_are_those_known_of_llama_cpp(
    n_ctx: int, n_draft: int, with_static: bool, expected: tuple[int, int, int]
) -> None:
    tokens, static = golden_tokens(), NgramCache()
    if with_static:
        static.update(tokens[:800], 800, (2,))
    figures = figures_of(tokens, n_ctx, n_draft, static, NgramCache())
    assert (figures.n_predict, figures.n_drafted, figures.n_accept) == expected
    assert 0 < figures.n_tied < figures.n_drafted


def test_what_is_drafted_does_not_go_beyond_a_piece_and_the_last_whole_one_is_not_tried() -> None:
    tokens = [1, 2, 3, 4] * 128
    two_pieces = figures_of(tokens, 256, 60, NgramCache(), NgramCache())
    assert (two_pieces.n_predict, two_pieces.n_drafted, two_pieces.n_accept) == (512, 300, 245)
    one_more = figures_of([*tokens, 1], 256, 60, NgramCache(), NgramCache())
    assert (one_more.n_predict, one_more.n_drafted, one_more.n_accept) == (512, 600, 495)


def test_past_pieces_end_in_the_dynamic_cache() -> None:
    tokens = repeating_tokens(1100, 8)
    dynamic, whole = NgramCache(), NgramCache()
    figures_of(tokens, 256, 3, NgramCache(), dynamic)
    for start in range(0, 1024, 256):
        whole.update(tokens[start : start + 256], 256)
    assert dict(dynamic.items()) == dict(whole.items())


def test_the_lines_are_those_of_llama_lookup_stats() -> None:
    figures = LookupFigures(3000, 256, 8, 2902, 2301, 2, t_draft_flat=0.0123, t_draft=0.05804)
    assert list(figure_lines(figures)) == [
        "n_draft      = 8",
        "n_predict    = 2816",
        "n_drafted    = 2902",
        "t_draft_flat = 12.30 ms",
        "t_draft      = 58.04 ms, 20.00 us per token, 50000.00 tokens per second",
        "n_accept     = 2301",
        "accept       = 79.290%",
    ]
    assert figure_object(figures)["n_tied"] == 2


def test_where_nothing_is_drafted_there_are_no_rates() -> None:
    nothing = figures_of([1, 2, 3], 256, 8, NgramCache(), NgramCache())
    assert list(figure_lines(nothing))[4:] == [
        "t_draft      = 0.00 ms, n/a us per token, n/a tokens per second",
        "n_accept     = 0",
        "accept       = n/a%",
    ]
    assert figure_object(nothing)["us_per_token"] is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb"a\nb\tc\rd", b"a\nb\tc\rd"),
        (rb"\'\"\\n", b"'\"\\n"),
        (rb"\x41\x6a\xff", b"Aj\xff"),
        (rb"\x4", rb"\x4"),
        (rb"\xg1\q", rb"\xg1\q"),
        (rb"\x 1\x+1\x-1", b"\x01\x01\xff"),
        (b"end\\", b"end\\"),
        (b"\\\n", b"\\\n"),
    ],
)
def test_escapes_mean_what_they_do_in_llama_cpp(written: bytes, meant: bytes) -> None:
    assert unescaped(written) == meant


def test_a_text_comes_from_the_option_the_file_or_standard_input_less_a_newline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n")
    assert read_text(path, None) == b"one\n"
    assert read_text(None, "two\n") == b"two\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"three\xff\n")))
    assert read_text(None, None) == b"three\xff"


def test_a_text_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=r"file: cannot read .*none: No such file"):
        read_text(tmp_path / "none", None)
    with pytest.raises(InvalidRequest, match="prompt: is not valid Unicode text"):
        read_text(None, "\udc80")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidRequest, match=r"needs --file, --prompt or a text on standard input"):
        read_text(None, None)


def test_how_long_it_takes_is_estimated_from_what_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter((0.0, 5.0, 11.0, 12.0, 22.0))
    with TimeLeft("lookup stats", 1000, lambda: next(times)) as progress:
        for done in (10, 100, 110, 200):
            progress.report(done)
    assert capsys.readouterr().err.splitlines() == [
        "lookup stats: 100/1000 done, ETA 01:39",
        "lookup stats: 200/1000 done, ETA 01:28",
    ]
