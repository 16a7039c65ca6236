"""A model named on Hugging Face: downloaded from a server that speaks its API, or refused."""

from __future__ import annotations

import errno
import hashlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import close_session, constants

from outrider.errors import InvalidConfig
from outrider_cli.hub import download, models
from tests.support.commands import run_here
from tests.support.hub import TOKEN, Hub, running_hub

MODEL = "tiny/model-GGUF"
NAME = Path(f"hf:{MODEL}")
CONTENT = {quant: b"GGUF" + quant.encode() * 700_000 for quant in ("Q4_K_M", "Q8_0")}
PARTS = {f"p-F16-0000{part}-of-00002.gguf": b"GGUF" + bytes([part]) * 9 for part in (1, 2)}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {"README.md": b"words", **{f"m-{each}.gguf": CONTENT[each] for each in CONTENT}}
    with running_hub(repositories={MODEL: {**files, **PARTS}, "no/gguf": {"a.bin": b"x"}}) as hub:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (
            ("ENDPOINT", hub.url),
            ("HUGGINGFACE_CO_URL_TEMPLATE", template),
            ("HF_HUB_CACHE", str(tmp_path / "hub")),
            ("HF_TOKEN_PATH", str(tmp_path / "token")),
        ):
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(download, "_PAUSE", 0.0)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        close_session()


def file_of(name: str | Path) -> Path:
    """Return the model's file as another process would get it."""
    models.model_file.cache_clear()
    return models.model_file("model", Path(name))


def refused(name: str | Path) -> str:
    with pytest.raises(InvalidConfig) as raised:
        file_of(name)
    line = str(raised.value)
    assert "\n" not in line and len(line) < 300
    return line


@pytest.mark.parametrize(
    "words",
    [
        *("generate", "chat", "up", "target", "draft", "doctor", "teach --out o.gguf"),
        *("bench --draft-model hf:", "lookup create -p a -lcs o.bin"),
        *("generate --draft-model hf:", "target --draft-model hf:", "up --draft-model hf:"),
    ],
)
def test_every_command_that_takes_a_file_takes_a_name(words, monkeypatch, tmp_path):
    monkeypatch.setattr("outrider_teach.command._check_torch", lambda: None)
    monkeypatch.chdir(tmp_path)
    shown = run_here(*words.split(), "--model", "hf:")
    assert "hf: is no name on Hugging Face: hf:ORG/REPO" in shown.err and shown.code == 1


def downloads(hub: Hub) -> list[str]:
    return [each for each in hub.asked if each.startswith("GET") and "/resolve/" in each]


def test_a_path_is_what_it_is(hub):
    assert file_of("large.gguf") == Path("large.gguf") and not hub.asked


def test_a_model_is_downloaded_into_the_cache_as_huggingface_hub_would_do_it(hub, tmp_path):
    path = file_of(NAME)
    assert path.read_bytes() == CONTENT["Q4_K_M"] and path.name == "m-Q4_K_M.gguf"
    blob = path.resolve()
    assert blob.name == hashlib.sha256(CONTENT["Q4_K_M"]).hexdigest()
    assert list(blob.parent.iterdir()) == [blob]
    from huggingface_hub import try_to_load_from_cache

    assert try_to_load_from_cache(MODEL, "m-Q4_K_M.gguf") == str(path)


def test_what_is_in_the_cache_is_taken_without_a_request(hub):
    first = file_of(f"{NAME}:Q8_0")
    hub.asked.clear()
    assert file_of(f"{NAME}:Q8_0") == first and not hub.asked


def test_the_usual_quantisation_is_taken_from_the_cache_and_no_other(hub):
    other, usual = file_of(f"{NAME}:Q8_0"), file_of(NAME)
    assert other != usual
    hub.asked.clear()
    assert file_of(NAME) == usual and not hub.asked


def test_all_parts_of_a_model_come_and_the_first_is_its_path(hub):
    path = file_of(f"{NAME}:F16")
    assert path.name == min(PARTS)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == PARTS


def test_a_model_of_which_a_part_is_missing_in_the_cache_is_completed(hub):
    path = file_of(f"{NAME}:F16")
    path.with_name(max(PARTS)).unlink()
    assert file_of(f"{NAME}:F16") == path
    assert path.with_name(max(PARTS)).read_bytes() == PARTS[max(PARTS)]


def test_a_broken_connection_continues_where_it_was(hub):
    hub.cut, hub.breaks = 3 << 20, 1
    assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]
    first, second = downloads(hub)
    assert not first.endswith("-") and second.endswith(f"bytes={3 << 20}-")


def test_a_download_that_was_ended_continues_with_the_next_command(hub):
    hub.cut, hub.breaks = 2 << 20, 1
    hub.continues = True
    broken = Mock(side_effect=KeyboardInterrupt)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(download.time, "sleep", broken)
        file_of(NAME)
    assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]
    assert downloads(hub)[-1].endswith(f"bytes={2 << 20}-")


def test_a_server_that_cannot_continue_sends_it_anew(hub):
    hub.cut, hub.breaks, hub.continues = 2 << 20, 1, False
    assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]


def test_a_server_that_always_breaks_is_given_up(hub):
    hub.breaks = 99
    assert "cannot be reached" in refused(NAME)
    assert len(downloads(hub)) == 5


def test_what_has_another_checksum_is_removed(hub, tmp_path):
    hub.damages = True
    assert "damaged, by its checksum" in refused(NAME)
    assert not list((tmp_path / "hub").rglob("*.incomplete")) and not list(
        (tmp_path / "hub").rglob("*.gguf")
    )
    hub.damages = False
    assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]


def test_a_repository_that_is_not_there_or_private_is_named(hub):
    assert refused("hf:no/body").endswith(
        f"{hub.url} has no no/body; if it is private, set HF_TOKEN"
    )


def test_a_gated_repository_says_where_its_terms_are(hub):
    hub.gated.add(MODEL)
    assert f"accept its terms at {hub.url}/{MODEL}, and set HF_TOKEN" in refused(NAME)


def test_a_token_opens_a_gated_repository(hub, monkeypatch):
    hub.gated.add(MODEL)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]


def test_a_token_goes_to_the_hub_and_not_to_where_it_sends_us(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running_hub(repositories=hub.repositories) as cdn:
        hub.cdn = cdn.url
        assert file_of(NAME).read_bytes() == CONTENT["Q4_K_M"]
    assert TOKEN in hub.tokens and downloads(cdn) and cdn.tokens == {""}


def test_a_token_that_is_none_is_refused(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    assert "does not accept the token in use (HF_TOKEN)" in refused(NAME)


def test_a_repository_without_gguf_is_refused(hub):
    assert "no/gguf has no GGUF file" in refused("hf:no/gguf")


def test_a_quantisation_that_is_not_there_lists_those_that_are(hub):
    assert "has no Q9_9, or not all of its parts; it has F16, Q4_K_M, Q8_0" in refused(
        f"{NAME}:Q9_9"
    )


def test_a_file_that_is_not_there_is_named(hub):
    assert "has no other.gguf" in refused(f"{NAME}/other.gguf")


def test_offline_nothing_is_asked_and_any_cached_quantisation_will_do(hub, monkeypatch):
    kept = file_of(f"{NAME}:Q8_0")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert file_of(NAME) == kept
    assert refused(f"{NAME}:F16").endswith("and HF_HUB_OFFLINE is set")
    assert not hub.asked


def test_without_a_network_what_is_cached_will_do(hub, monkeypatch):
    kept = file_of(f"{NAME}:Q8_0")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert file_of(NAME) == kept
    assert "http://127.0.0.1:9 cannot be reached" in refused(f"{NAME}:F16")


def test_a_hub_that_is_out_of_order_is_quoted(hub):
    hub.status = 503
    assert "refuses hf:tiny/model-GGUF: 503 Service Unavailable" in refused(NAME)


def test_a_disk_without_room_is_found_before_the_download(hub, monkeypatch):
    usage: Any = Mock(return_value=Mock(free=10**6))
    monkeypatch.setattr(shutil, "disk_usage", usage)
    line = refused(NAME)
    assert "needs 4.2 MB, and " in line and " has room for 1.0 MB; HF_HOME" in line
    assert not downloads(hub)


def test_a_disk_that_becomes_full_is_named_and_what_came_is_kept(hub, monkeypatch, tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(models._Shown, "__call__", Mock(side_effect=full))
    assert "hub, which is full; HF_HOME" in refused(NAME)
    assert list((tmp_path / "hub").rglob("*.incomplete"))


def test_two_who_want_a_file_at_once_download_it_once(hub, tmp_path):
    content = CONTENT["Q8_0"]
    file = download.RemoteFile(
        f"{hub.url}/{MODEL}/resolve/main/m-Q8_0.gguf",
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    lock = tmp_path / "locks" / "one.lock"
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(download.download, file, tmp_path, lock, print) for _ in range(2)]
        assert [each.result() for each in both] == [None, None]
    assert len(downloads(hub)) == 1 and (tmp_path / file.sha256).read_bytes() == content


def test_without_the_library_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'outrider[llama]'" in refused(NAME)


def test_progress_says_how_much_and_how_fast(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(models.time, "monotonic", iter([0.0, 2.0]).__next__)
    shown = models._Shown("big.gguf", 4 * 10**9, said.append)
    shown(10**9)
    shown(2 * 10**9)
    assert said == [
        "downloading big.gguf: 25% of 4.0 GB",
        "downloading big.gguf: 50% of 4.0 GB, 500 MB/s",
    ]
