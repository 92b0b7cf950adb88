"""Seals a secret under the server's signing key, for the database: an upstream's, or those of a
load's links.

The database alone reveals no secret. A server with a new signing key cannot open earlier ones: an
upstream's has to be set again.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

from fleet.errors import UpstreamSecretError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

# cryptography is imported where it is used: it is 5 MiB of every process, and most have no secret.
PURPOSE = b"helexa upstream secrets"
KEY_BYTES = 32


def seal(secret: str, signing_key: str, purpose: bytes = PURPOSE) -> str:
    """``purpose``: a secret sealed for another one does not open."""
    return _fernet(signing_key, purpose).encrypt(secret.encode()).decode()


def unseal(sealed: str, signing_key: str, purpose: bytes = PURPOSE) -> str:
    """Raises ``UpstreamSecretError`` where it was sealed under another signing key."""
    from cryptography.fernet import InvalidToken

    try:
        return _fernet(signing_key, purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise UpstreamSecretError(
            "The upstream's key was stored under another HELEXA_SECRET_KEY: set it again with "
            "manage.py upstreams change NAME --key -"
        ) from None


@lru_cache(maxsize=4)
def _fernet(signing_key: str, purpose: bytes) -> Fernet:
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose)
    return Fernet(base64.urlsafe_b64encode(derived.derive(signing_key.encode())))
