"""A data directory's own id and secret key.

Gateways send the id with ``/health`` and ``/metrics``, so that commands on the same machine do not
mistake another instance's port for their own. It is no secret, and a copied directory gets another
one.

The key signs sessions and digests API keys: HELEXA_SECRET_KEY, else one that is made once and
stored. Every gateway of a fleet needs the same. A process that signs nothing never reads it.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.whole_file import keep_once
from inference.settings.setting import SettingError

INSTANCE_HEADER = "x-helexa-instance"
INSTANCE_CHARACTERS = 32
SECRET_KEY_BYTES = 48


def instance_id(data_dir: Path) -> str | None:
    """Device and inode, digested. ``None``: the directory is missing."""
    try:
        found = data_dir.stat()
    except OSError:
        return None
    identity = f"{found.st_dev}:{found.st_ino}"
    return hashlib.sha256(identity.encode()).hexdigest()[:INSTANCE_CHARACTERS]


class SecretKeyError(SettingError):
    pass


def secret_key(config: Config) -> str:
    """The first reader creates the data directory's. Raises ``SecretKeyError``, for the
    operator."""
    if config.secret_key is not None:
        return config.secret_key
    path = config.data_dir / SECRET_KEY_FILE
    try:
        if not path.exists():
            keep_once(path, secrets.token_urlsafe(SECRET_KEY_BYTES))
        key = path.read_text().strip()
    except OSError as error:
        raise SecretKeyError(
            f"no key to sign with: {path} cannot be kept ({error.strerror}); "
            "set HELEXA_SECRET_KEY, the same for every gateway"
        ) from error
    if not key:
        raise SecretKeyError(f"{path} is empty: put the key back, or remove the file for a new one")
    return key
