"""API keys: their form, making and recognising them. Pure: no ORM, no clock.

    hx-4fZ81kQm0b - Jw3…   (32)
    └─ prefix ──┘   └ secret ┘

The prefix is public: it names the key in lists, logs and the ledger. Of the whole key only a digest
is stored, keyed by Django's SECRET_KEY, so that the database alone proves nothing. A fast digest is
enough: the secret has 190 bits.

A key that an operator chose elsewhere has another form. Its public prefix is computed from it:

    sk-team-… ─▶ im- and 13 digits of a keyed hash, which the database alone cannot reproduce
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field

BASE62 = string.digits + string.ascii_letters
PREFIX_MARK = "hx-"
NUM_PREFIX_CHARS = 10
NUM_SECRET_CHARS = 32
KEY_FORM = re.compile(r"(hx-[0-9A-Za-z]{10})-[0-9A-Za-z]{32}", re.ASCII)
IMPORTED_MARK = "im-"
NUM_IMPORTED_DIGITS = 13
IMPORTED_FORM = re.compile(r"[\x21-\x7e]{8,200}", re.ASCII)
IMPORTED_PURPOSE = b"metering.keys: prefix of an imported key: "
DIGEST_PURPOSE = b"metering.keys: digest of an API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """``key`` is shown to a person once and not stored."""

    prefix: str
    key: str = field(repr=False)


def make_key() -> NewKey:
    prefix = PREFIX_MARK + _random_word(NUM_PREFIX_CHARS)
    return NewKey(prefix=prefix, key=f"{prefix}-{_random_word(NUM_SECRET_CHARS)}")


def prefix_of(presented_key: str) -> str | None:
    match = KEY_FORM.fullmatch(presented_key)
    return None if match is None else match[1]


def imported_prefix(presented_key: str, secret: bytes) -> str:
    digits = hmac.digest(secret, IMPORTED_PURPOSE + presented_key.encode(), "sha256").hex()
    return IMPORTED_MARK + digits[:NUM_IMPORTED_DIGITS]


def import_problem(key: str) -> str | None:
    if prefix_of(key) is not None:
        return "This has the form of helexa's own keys, which are made, not imported"
    if not IMPORTED_FORM.fullmatch(key):
        return "A key has 8 to 200 printable ASCII characters and no spaces"
    return None


def digest_secret(secret_key: str) -> bytes:
    """The key of the digests, from Django's SECRET_KEY: for this purpose alone."""
    return hmac.digest(secret_key.encode(), DIGEST_PURPOSE, hashlib.sha256)


def digest_of(key: str, secret: bytes) -> str:
    """``secret`` is from ``digest_secret``. 64 hexadecimal digits."""
    return hmac.digest(secret, key.encode(), "sha256").hex()


def is_key_of(presented_key: str, digest: str, secret: bytes) -> bool:
    return hmac.compare_digest(digest_of(presented_key, secret), digest)


def _random_word(num_chars: int) -> str:
    return "".join(secrets.choice(BASE62) for _ in range(num_chars))
