"""The key that signs sessions and digests API keys: HELEXA_SECRET_KEY, else one that is made once
and kept in the data directory.

Every gateway of a fleet needs the same. A process that signs nothing never asks for it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from helexa_site.config import SECRET_KEY_FILE, Config
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
            _keep_new_key(path)
        key = path.read_text().strip()
    except OSError as error:
        raise SecretKeyError(
            f"no key to sign with: {path} cannot be kept ({error.strerror}); "
            "set HELEXA_SECRET_KEY, the same for every gateway"
        ) from error
    if not key:
        raise SecretKeyError(f"{path} is empty: put the key back, or remove the file for a new one")
    return key


def _keep_new_key(path: Path) -> None:
    """It appears with all that is in it, and once, however many processes start together."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{SECRET_KEY_FILE}.") as file:
        file.write(secrets.token_urlsafe(SECRET_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return
