"""`outrider certs`: an authority in a folder, what it signs, and how that is renewed."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from outrider.errors import InvalidConfig
from outrider_certs.authority import Authority, read_wanted, write_secret
from outrider_cli import run


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def handshake(folder: Path, server: str, client: str, host: str) -> None:
    """Let the two speak TLS in memory, each trusting `ca.pem` alone. Raises ssl.SSLError."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(folder / f"{server}.pem", folder / f"{server}.key")
    there.load_verify_locations(folder / "ca.pem")
    there.verify_mode = ssl.CERT_REQUIRED
    here = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    here.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    to_there, to_here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        here.wrap_bio(to_here, to_there, server_hostname=host),
        there.wrap_bio(to_there, to_here, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for end in ends:
        end.do_handshake()


def test_one_command_makes_all_that_a_deployment_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "certs"
    made = run(["certs", str(folder), "--server", "gpu=gpu.example,10.0.0.5", "--client", "laptop"])
    assert made == 0
    ends = [
        f"{certificate(folder / f'{name}.pem').not_valid_after_utc:%Y-%m-%d}"
        for name in ("ca", "gpu", "laptop")
    ]
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/ca.pem: authority, until {ends[0]}",
        f"{folder}/gpu.pem: server of gpu.example, 10.0.0.5, localhost, 127.0.0.1, ::1,"
        f" until {ends[1]}",
        f"{folder}/laptop.pem: client of laptop, until {ends[2]}",
    ]
    for host in ("gpu.example", "10.0.0.5", "localhost", "127.0.0.1"):
        handshake(folder, "gpu", "laptop", host)
        handshake(folder, "gpu", "gpu", host)  # services call each other, too
    with pytest.raises(ssl.SSLError, match="mismatch"):
        handshake(folder, "gpu", "laptop", "other.example")
    with pytest.raises(ssl.SSLError, match="purpose"):
        handshake(folder, "laptop", "gpu", "laptop")  # who only calls cannot serve


def test_a_clients_name_need_be_no_host(tmp_path: Path):
    assert run(["certs", str(tmp_path), "--server", "gpu", "--client", "ada_lovelace"]) == 0
    handshake(tmp_path, "gpu", "ada_lovelace", "gpu")


def test_nobody_else_reads_any_of_it(tmp_path: Path):
    before = os.umask(0)  # whatever is usual
    try:
        assert run(["certs", str(tmp_path / "certs"), "--server", "gpu"]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "certs").iterdir())
    assert sorted(file.name for file in files) == ["ca.key", "ca.pem", "gpu.key", "gpu.pem"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_the_authority_stays_and_a_name_that_is_asked_for_again_is_new(tmp_path: Path):
    assert run(["certs", str(tmp_path), "--server", "a", "--server", "b"]) == 0
    first = contents(tmp_path)
    assert run(["certs", str(tmp_path), "--server", "a=elsewhere.example"]) == 0
    second = contents(tmp_path)
    assert {name for name in first if first[name] != second[name]} == {"a.pem", "a.key"}
    handshake(tmp_path, "a", "b", "elsewhere.example")


def test_what_ends_soon_is_renewed_with_its_names_and_the_rest_is_not(tmp_path: Path):
    now = datetime.now(UTC)
    long_ago = Authority(tmp_path, now - timedelta(days=350))
    long_ago.issue(read_wanted("--server", "gpu=gpu.example,fe80::1"), 365)
    long_ago.issue(read_wanted("--client", "laptop"), 365)
    Authority(tmp_path).issue(read_wanted("--server", "young"), 365)
    before = contents(tmp_path)
    assert run(["certs", str(tmp_path), "--renew", "30", "--days", "90"]) == 0
    after = contents(tmp_path)
    renewed = {name for name in before if before[name] != after[name]}
    assert renewed == {"gpu.pem", "gpu.key", "laptop.pem", "laptop.key"}
    left = certificate(tmp_path / "gpu.pem").not_valid_after_utc - now
    assert timedelta(days=89) < left < timedelta(days=91)
    handshake(tmp_path, "gpu", "laptop", "gpu.example")
    with pytest.raises(ssl.SSLError, match="purpose"):
        handshake(tmp_path, "laptop", "gpu", "laptop")
    assert run(["certs", str(tmp_path), "--renew", "30"]) == 0
    assert contents(tmp_path) == after


def test_an_authority_that_ends_soon_is_renewed_and_its_certificates_stay_valid(tmp_path: Path):
    now = datetime.now(UTC)
    Authority(tmp_path, now - timedelta(days=3640))
    Authority(tmp_path, now).issue(read_wanted("--server", "gpu"), 365)
    end = certificate(tmp_path / "gpu.pem").not_valid_after_utc
    assert end == certificate(tmp_path / "ca.pem").not_valid_after_utc  # none outlives it
    before = contents(tmp_path)
    Authority(tmp_path, now).renew(30, 365)
    after = contents(tmp_path)
    assert before["ca.key"] == after["ca.key"] and before["ca.pem"] != after["ca.pem"]
    assert certificate(tmp_path / "gpu.pem").not_valid_after_utc > end
    handshake(tmp_path, "gpu", "gpu", "localhost")


def test_files_of_others_are_not_renewed(tmp_path: Path):
    Authority(tmp_path)
    stranger = trustme.CA().issue_cert("x.example", not_after=datetime(2020, 1, 1))
    stranger.cert_chain_pems[0].write_to_path(tmp_path / "x.pem")
    stranger.private_key_pem.write_to_path(tmp_path / "x.key")
    before = contents(tmp_path)
    assert run(["certs", str(tmp_path), "--renew", "3650", "--days", "3650"]) == 0
    assert {name for name in before if before[name] != contents(tmp_path)[name]} <= {
        "ca.pem",
        "ca.key",
    }
    assert contents(tmp_path)["x.pem"] == before["x.pem"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", "../x"], "--server: '../x' is no name for files"),
        (["--server", "ca"], "--server: 'ca' is no name for files"),
        (["--server", "=a.example"], "--server: '' is no name for files"),
        (["--server", "a=b c"], "--server: 'b c' is no name or address of a host"),
        (["--server", "a=" + "x" * 5000 + "!"], "is no name or address of a host"),
        (["--client", "a=b"], "--client: a client has a name alone"),
        (["--server", "a", "--client", "a"], "certs: names one certificate twice"),
        (["--days", "0"], "days: must be in [1, 3650], not 0"),
        (["--renew", "-1"], "renew: must be in [0, 3650], not -1"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert run(["certs", str(tmp_path / "certs"), *words]) != 0
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert not (tmp_path / "certs").exists()


def test_a_folder_with_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "ca.pem").write_text("no certificate")
    for message in ("there is no PEM certificate in", "cannot read"):
        before = contents(tmp_path)
        assert run(["certs", str(tmp_path), "--server", "a"]) != 0
        assert message in capsys.readouterr().err and contents(tmp_path) == before
        trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    Authority(tmp_path / "other")
    (tmp_path / "other" / "ca.key").replace(tmp_path / "ca.key")
    with pytest.raises(InvalidConfig, match="are no authority together"):
        Authority(tmp_path)


def test_a_file_is_whole_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_secret(tmp_path / "x.key", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_secret(tmp_path / "x.key", b"new")
    assert contents(tmp_path) == {"x.key": b"old"}
