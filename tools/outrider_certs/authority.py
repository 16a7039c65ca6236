"""Makes and renews certificates of one authority, in a folder that only its owner reads."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outrider.errors import InvalidConfig

AUTHORITY = "ca"
AUTHORITY_DAYS = 3650
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What every server's certificate is for, too: it is asked for its health from where it runs."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_EARLIER = timedelta(hours=1)  # for clocks that are late
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate to make: of a server that has these names and addresses, or of a client."""

    name: str
    hosts: tuple[str, ...] = ()
    is_server: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate that was made."""

    path: Path
    kind: str  # authority, server or client
    hosts: tuple[str, ...]
    end: datetime


def read_wanted(option: str, text: str) -> Wanted:
    """Return what NAME or NAME=HOST,... asks for. Raises InvalidConfig."""
    name, _, hosts = text.partition("=")
    if _NAME.fullmatch(name) is None or name == AUTHORITY:
        raise InvalidConfig(option, f"{name!r} is no name for files; ca is the authority's own")
    is_server = option == "--server"
    if hosts and not is_server:
        raise InvalidConfig(option, "a client has a name alone")
    own = tuple(dict.fromkeys(part.strip("[] ") for part in hosts.split(",") if part)) or (name,)
    for host in own if is_server else ():
        if not _is_address(host) and _HOST.fullmatch(host) is None:
            raise InvalidConfig(option, f"{host!r} is no name or address of a host")
    more = tuple(each for each in LOOPBACK if each not in own) if is_server else ()
    return Wanted(name, own + more, is_server)


class Authority:
    """The authority in a folder: `ca.pem` and `ca.key`, which are made where there are none.

    Raises InvalidConfig for what cannot be read or written, or is no authority.
    """

    def __init__(self, folder: Path, now: datetime | None = None) -> None:
        self._folder = folder
        self._now = now or datetime.now(UTC)
        self.made: list[Made] = []
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig("folder", f"cannot make {folder}: {error.strerror}") from None
        paths = self._paths(AUTHORITY)
        if not any(path.exists() for path in paths):
            self._make_authority(ec.generate_private_key(ec.SECP256R1()))
        certificate, key = _read_certificate(paths[0]), _read_key(paths[1])
        constraints = _basic_constraints(certificate)
        if not constraints or certificate.public_key() != key.public_key():
            raise InvalidConfig("folder", f"{paths[0]} and {paths[1]} are no authority together")
        self._certificate, self._key = certificate, key

    def issue(self, wanted: Wanted, days: int) -> None:
        """Make a certificate and its key, in place of those that there are."""
        path, _ = self._paths(wanted.name)
        if path.exists() and _basic_constraints(_read_certificate(path)):
            raise InvalidConfig(wanted.name, f"{path} is an authority's certificate")
        key = ec.generate_private_key(ec.SECP256R1())
        end = min(self._now + timedelta(days=days), self._certificate.not_valid_after_utc)
        uses = [_SERVER, _CLIENT] if wanted.is_server else [_CLIENT]
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            self._builder(wanted.name, self._certificate.subject, key.public_key(), end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(_names(wanted.hosts)), critical=False)
            .add_extension(signed_by, critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self._write(wanted.name, certificate, key)
        kind = "server" if wanted.is_server else "client"
        self.made.append(Made(path, kind, wanted.hosts, end))

    def renew(self, within_days: int, days: int) -> None:
        """Make those again that end within so many days: the authority's with its own key."""
        limit = self._now + timedelta(days=within_days)
        if self._certificate.not_valid_after_utc <= limit:
            self._certificate = self._make_authority(self._key)
        for path in sorted(self._folder.glob("*.pem")):
            if path.stem == AUTHORITY or not self._paths(path.stem)[1].exists():
                continue
            certificate = _read_certificate(path)
            if self._has_signed(certificate) and certificate.not_valid_after_utc <= limit:
                self.issue(_wanted_again(path.stem, certificate), days)

    def _has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _make_authority(self, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        end = self._now + timedelta(days=AUTHORITY_DAYS)
        name = "Outrider authority"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            self._builder(name, subject, key.public_key(), end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        certificate = builder.sign(key, hashes.SHA256())
        self._write(AUTHORITY, certificate, key)
        self.made.append(Made(self._paths(AUTHORITY)[0], "authority", (), end))
        return certificate

    def _builder(
        self, name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _EARLIER)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        path, key_path = self._paths(name)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            write_secret(key_path, plain)
            write_secret(path, certificate.public_bytes(Encoding.PEM))
        except OSError as error:
            raise InvalidConfig("folder", f"cannot write {path}: {error.strerror}") from None


def write_secret(path: Path, data: bytes) -> None:
    """Put a file that only its owner reads in the place of another, whole at any time."""
    # What mkstemp makes has the mode 600 from the start.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [
        x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
        for host in hosts
    ]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _basic_constraints(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is an authority's."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _wanted_again(name: str, certificate: x509.Certificate) -> Wanted:
    """Return what a certificate was made for."""
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    hosts = [each.value for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
    return Wanted(name, tuple(map(str, hosts)), _SERVER in uses)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InvalidConfig("folder", f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise InvalidConfig("folder", f"there is no PEM certificate in {path}") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InvalidConfig("folder", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidConfig("folder", f"there is no PEM key in {path}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidConfig("folder", f"the key in {path} is not of this command")
    return key
