"""A pair by its names on Hugging Face, as a user runs it, from a server with the hub's API."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import LOCAL, Command, outrider_json
from tests.support.hub import TOKEN, running_hub
from tests.support.tiny_gguf import write_pair


def test_a_pair_by_name_writes_what_its_files_write(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    words = ("generate", "--json", *LOCAL, "-n", "24", "--n-draft", "4")
    by_path = outrider_json(*words[2:], "--model", str(target), "--draft-model", str(draft))
    repositories = {
        "tiny/large": {"large-Q8_0.gguf": target.read_bytes()},
        "tiny/small": {"small-Q4_K_M.gguf": draft.read_bytes()},
    }
    names = ("--model", "hf:tiny/large:Q8_0", "--draft-model=hf:tiny/small")
    with running_hub(repositories=repositories, gated={"tiny/large"}) as hub:
        here = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        refused = Command(*words, *names, env=here).finish()
        assert refused.code == 1 and "set HF_TOKEN" in refused.err and not refused.out
        came = Command(*words, *names, env={**here, "HF_TOKEN": TOKEN}).finish()
        assert came.json["token_ids"] == by_path["token_ids"]
        assert came.json["statistics"]["accepted_token_count"] > 0
        assert "note: downloading hf:tiny/large:Q8_0, " in came.err
        hub.asked.clear()
        again = Command(*words, *names, env={**here, "HF_HUB_OFFLINE": "1"}).finish()
        assert again.json["token_ids"] == by_path["token_ids"]
        assert not hub.asked and not again.err
