"""Memory limits are read as the system writes them, and certificates without another library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from outrider.memory import available_memory
from outrider.rpc.certificates import Validity, ca_validity, own_validity

DAY = 86400.0


def system(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[int, str] | None:
    """Return what is found on a system with these files."""
    told = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:    2000 kB\n"}
    told |= {"proc/self/cgroup": cgroup}
    for name, text in {**told, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_memory(folder / "proc", folder / "cgroup")


def test_without_a_limit_the_machine_decides(tmp_path: Path):
    assert system(tmp_path, "0::/\n", {}) == (2_048_000, "machine")
    unlimited = {"cgroup/memory.max": "max\n", "cgroup/memory.current": "5\n"}
    assert system(tmp_path, "0::/\n", unlimited) == (2_048_000, "machine")


def test_a_limit_counts_less_what_is_used_and_cannot_be_dropped(tmp_path: Path):
    files = {
        "cgroup/a/b/memory.max": "1000000\n",
        "cgroup/a/b/memory.current": "700000\n",
        "cgroup/a/b/memory.stat": "anon 300000\ninactive_file 200000\n",
    }
    assert system(tmp_path, "0::/a/b\n", files) == (500_000, "cgroup")


def test_the_tightest_limit_above_counts(tmp_path: Path):
    files = {
        "cgroup/a/memory.max": "100\n",
        "cgroup/a/memory.current": "90\n",
        "cgroup/a/b/memory.max": "1000\n",
        "cgroup/a/b/memory.current": "90\n",
    }
    assert system(tmp_path, "0::/a/b\n", files) == (10, "cgroup")


def test_in_a_container_the_limit_is_at_the_top(tmp_path: Path):
    files = {"cgroup/memory.max": "100\n", "cgroup/memory.current": "150\n"}
    assert system(tmp_path, "0::/of/the/host\n", files) == (0, "cgroup")


def test_version_1_has_other_names(tmp_path: Path):
    files = {
        "cgroup/memory/x/memory.limit_in_bytes": "1000\n",
        "cgroup/memory/x/memory.usage_in_bytes": "400\n",
        "cgroup/memory/x/memory.stat": "total_inactive_file 100\n",
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/memory.usage_in_bytes": "5000\n",
    }
    assert system(tmp_path, "4:memory:/x\n1:cpu:/\n0::/\n", files) == (700, "cgroup")


def test_a_system_that_says_nothing_is_none(tmp_path: Path):
    assert available_memory(tmp_path, tmp_path) is None


# --- certificates ---


def issued(folder: Path, days: float, begin: datetime = datetime(2020, 1, 1)) -> tuple[Path, Path]:
    """Return a certificate that ends in so many days, and its key."""
    end = datetime.now(UTC) + timedelta(days=days)
    leaf = trustme.CA().issue_cert("there.example", not_before=begin, not_after=end)
    leaf.cert_chain_pems[0].write_to_path(folder / "own.pem")
    leaf.private_key_pem.write_to_path(folder / "own.key")
    return folder / "own.pem", folder / "own.key"


def test_the_end_of_an_authority_is_read(tmp_path: Path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    assert (ca_validity(tmp_path / "ca.pem").seconds_left or 0) > 1000 * DAY
    assert not ca_validity(tmp_path / "ca.pem").fault


@pytest.mark.parametrize("days", [10, 400])
def test_the_end_of_our_own_certificate_is_read(tmp_path: Path, days: int):
    validity = own_validity(*issued(tmp_path, days))
    assert validity.seconds_left == pytest.approx(days * DAY, abs=60) and not validity.fault


def test_a_certificate_that_has_expired_has_nothing_left(tmp_path: Path):
    assert own_validity(*issued(tmp_path, -3)) == Validity(0.0)
    assert Validity(0.0).fault == "has expired"


def test_a_certificate_that_begins_tomorrow_is_not_valid_yet(tmp_path: Path):
    own, key = issued(tmp_path, 99, datetime.now(UTC) + timedelta(days=1))
    assert own_validity(own, key) == Validity(not_yet=True)
    assert "not valid yet" in Validity(not_yet=True).fault


def test_an_authority_of_the_future_is_not_valid_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setattr("outrider.rpc.certificates.time.time", lambda: 0.0)
    assert ca_validity(tmp_path / "ca.pem").not_yet


def test_what_is_no_certificate_is_not_known(tmp_path: Path):
    file = tmp_path / "text.pem"
    file.write_text("nothing")
    assert ca_validity(file) == own_validity(file, file) == Validity()
    assert ca_validity(tmp_path / "missing") == Validity()
