"""Whether this machine has a GPU, and until when a certificate is good."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

_GPU_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl")


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
