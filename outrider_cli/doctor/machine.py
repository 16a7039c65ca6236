"""What this machine leaves to a process: memory, GPUs; and until when a certificate is good."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from outrider_cli.doctor.checks import Memory

_CGROUPS = Path("/sys/fs/cgroup")
_GPU_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl")
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2**63


def available_memory(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> Memory | None:
    """Return what a new process could take; None where the system does not say."""
    found = []
    machine = _field(proc / "meminfo", "MemAvailable:")
    if machine is not None:
        found.append((1024 * machine, "machine"))
    for folder in _memory_folders(proc, cgroups):
        left = _left(folder)
        if left is not None:
            found.append((left, "cgroup"))
    return min(found, default=None)


def _memory_folders(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of this process's cgroup and those above it, versions 1 and 2."""
    folders = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "memory"):
            top = cgroups / names
            own = top / path.strip("/")
            # In a container the path is often the host's, and only the top is there.
            folders += [f for f in (own, *own.parents) if f == top or top in f.parents]
    return folders


def _left(folder: Path) -> int | None:
    """Return the bytes until the limit of one cgroup, not counting files it could drop."""
    for limit, usage, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
        if most.isdecimal() and used.isdecimal() and int(most) < _NO_LIMIT:
            dropped = _field(folder / "memory.stat", idle) or 0
            return max(0, int(most) - int(used) + dropped)
    return None


def _field(path: Path, name: str) -> int | None:
    """Return the number after a name in a file of such lines."""
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def has_gpu_device() -> bool:
    """Return whether a driver shows a GPU that llama.cpp could be built for."""
    return any(Path(device).exists() for device in _GPU_DEVICES)


# --- certificates ---


def ca_expiry(path: Path) -> float | None:
    """Return the seconds until the first certificate of an authority expires."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except OSError:
        return None
    ends = [_seconds_left(certificate) for certificate in context.get_ca_certs()]
    return min(ends, default=None)


def own_expiry(cert: Path, key: Path) -> float | None:
    """Return the seconds until a certificate with its key expires, 0.0 if it has.

    The standard library reads a certificate only where a peer shows it: so
    it is shown to ourselves, in memory.
    """
    try:
        shows = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        shows.check_hostname, shows.verify_mode = False, ssl.CERT_NONE
        looks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        looks.verify_mode = ssl.CERT_REQUIRED
        looks.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        looks.load_verify_locations(cert)
        for context in (shows, looks):
            context.load_cert_chain(cert, key, password="")
        return _seconds_left(_shake_hands(shows, looks))
    except ssl.SSLCertVerificationError as error:
        return 0.0 if "expired" in error.verify_message else None
    except OSError:
        return None


def _shake_hands(shows: ssl.SSLContext, looks: ssl.SSLContext) -> dict[str, str]:
    """Return what the server of a handshake in memory sees of its client."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = shows.wrap_bio(back, there)
    server = looks.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    seen: dict[str, str] = server.getpeercert() or {}  # type: ignore[assignment]
    return seen


def _seconds_left(certificate: object) -> float:
    assert isinstance(certificate, dict)
    return ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
