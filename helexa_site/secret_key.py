"""The key that signs sessions and digests API keys: HELEXA_SECRET_KEY, else one that is made once
and kept in the data directory.

Every gateway of a fleet needs the same. A process that signs nothing never asks for it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.whole_file import keep_once
from inference.settings.setting import SettingError

SECRET_KEY_BYTES = 48


class SecretKeyError(SettingError):
    """There is none, and none can be kept."""


def secret_key(config: Config) -> str:
    """Raises ``SecretKeyError``, for the operator."""
    return config.secret_key or kept_secret_key(config.data_dir)


def kept_secret_key(data_dir: Path) -> str:
    """The data directory's, which the first process that asks writes. Raises ``SecretKeyError``."""
    path = data_dir / SECRET_KEY_FILE
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
