"""Keys and certificates of the two ends of a replica's links, made for one load of one replica."""

from __future__ import annotations

import datetime
import os
import secrets
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from inference.protocol.load import LinkIdentity

Purpose = Literal["control", "rows", "rows-back"]
"""``rows``: a step's rows, from the end that dials to the stage that listens. ``rows-back``: the
last stage's, from the stage that listens to the engine that dials."""

NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""Clocks of a fleet's hosts differ, so time limits nothing. A certificate is good for as long as an
end names it: while its replica is loaded."""


def new_identity() -> LinkIdentity:
    # Imported here: 5 MiB of every process that knows how to link, and few make identities.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own: certificates of one name are tried as issuers of each other.
    own_name = f"helexa stage {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, own_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return LinkIdentity(
        certificate=certificate.public_bytes(Encoding.PEM).decode(), private_key=secret.decode()
    )


def certificate_der(certificate: str) -> bytes:
    """Raises ``ValueError``."""
    return ssl.PEM_cert_to_DER_cert(certificate)


def protocol_of(purpose: Purpose) -> str:
    """The link's ALPN name."""
    return f"helexa-stage-{purpose}/1"


def server_context(identity: LinkIdentity, peers: Iterable[str]) -> ssl.SSLContext:
    """Accepts any certificate of ``peers``; each purpose checks again. Raises ``ValueError``."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, peers)
    context.num_tickets = 0  # no client resumes, and one that only writes would never read them
    return context


def client_context(identity: LinkIdentity, peer: str, purpose: Purpose) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT, identity, [peer])
    context.set_alpn_protocols([protocol_of(purpose)])
    return context


def _context(side: int, identity: LinkIdentity, peers: Iterable[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # an end is known by its certificate, wherever it is
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata="\n".join(peers))
        _load_identity(context, identity)
    except ssl.SSLError as error:
        raise ValueError("these are no credentials of a stage link") from error
    return context


def _load_identity(context: ssl.SSLContext, identity: LinkIdentity) -> None:
    """OpenSSL's binding reads keys from files only."""
    with tempfile.TemporaryDirectory(prefix="helexa-link-") as folder:
        path = Path(folder) / "identity.pem"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w") as file:
            file.write(identity.private_key + identity.certificate)
        context.load_cert_chain(path)
