"""From when and until when a certificate is valid, by the standard library alone."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Validity:
    """What is known of a certificate's dates."""

    seconds_left: float | None = None  # 0.0 or less: it has expired; None where that is not known
    not_yet: bool = False  # it begins later than now, by this machine's clock

    @property
    def fault(self) -> str:
        """Why nobody will trust it now, in words; empty where nothing is wrong."""
        if self.not_yet:
            return "is not valid yet, by this machine's clock"
        return "has expired" if self.seconds_left is not None and self.seconds_left <= 0 else ""


def ca_validity(path: Path) -> Validity:
    """Return when the first certificate of an authority expires, and whether one begins later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except OSError:
        return Validity()
    known = context.get_ca_certs()
    begins = [ssl.cert_time_to_seconds(str(each["notBefore"])) for each in known]
    ends = [_seconds_left(each) for each in known]
    return Validity(min(ends, default=None), max(begins, default=0.0) > time.time())


def own_validity(cert: Path, key: Path) -> Validity:
    """Return when a certificate with its key expires, or that it has or that it begins later.

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
        return Validity(_seconds_left(_shake_hands(shows, looks)))
    except ssl.SSLCertVerificationError as error:
        if "not yet valid" in error.verify_message:
            return Validity(not_yet=True)
        return Validity(0.0 if "expired" in error.verify_message else None)
    except OSError:
        return Validity()


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
