"""Certificates made for a test: an authority no system trusts, and a server's that it signed."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=2)
USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        self._certificate = self._signed(made)
        self.pem = _pem(self._certificate)

    def vouch(self, address: str, folder: Path) -> tuple[Path, Path]:
        """The files of a server's certificate, with the authority's after it, and of its key."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_named(address), self._name, key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(), critical=True)
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = made.add_extension(alternatives, critical=False)
        chain_path, key_path = folder / "chain.pem", folder / "key.pem"
        chain_path.write_text(_pem(self._signed(made)) + self.pem)
        how = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *how))
        return chain_path, key_path

    def _signed(self, made: x509.CertificateBuilder) -> x509.Certificate:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return made.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses or use == "digital_signature" for use in USES})


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
