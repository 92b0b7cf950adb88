"""A data directory's own id and secret key.

The id is new for each directory. Gateways send it with ``/health`` and ``/metrics``, so that
commands on the same machine do not mistake another instance's port for their own. It is no secret.
Its file also names the directory it was written for (device and inode): a copied directory is
another instance and gets an id of its own.

The key signs sessions and digests API keys: HELEXA_SECRET_KEY, else one that is made once and kept.
Every gateway of a fleet needs the same. A process that signs nothing never asks for it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.whole_file import keep_once
from inference.settings.setting import SettingError

INSTANCE_FILE = "instance_id"
INSTANCE_BYTES = 16
INSTANCE_HEADER = "x-helexa-instance"


def known_instance_id(data_dir: Path) -> str | None:
    """``None``: no gateway has run on it yet, or could write there."""
    try:
        text = (data_dir / INSTANCE_FILE).read_text()
        known, _, written_for = text.partition(" ")
        return known if written_for == _identity(data_dir) else None
    except OSError:
        return None


@lru_cache(maxsize=8)
def instance_id(data_dir: Path) -> str | None:
    """The first process that asks writes it. ``None``: the directory cannot be written."""
    if (known := known_instance_id(data_dir)) is not None:
        return known
    try:
        with _locked(data_dir):
            if (known := known_instance_id(data_dir)) is None:
                path = data_dir / INSTANCE_FILE
                path.unlink(missing_ok=True)
                known = secrets.token_hex(INSTANCE_BYTES)
                keep_once(path, f"{known} {_identity(data_dir)}")
            return known
    except OSError:
        return None


def _identity(data_dir: Path) -> str:
    found = data_dir.stat()
    return f"{found.st_dev}:{found.st_ino}"


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Processes that start together write one after the other. Raises ``OSError``."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(data_dir, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


SECRET_KEY_BYTES = 48


class SecretKeyError(SettingError):
    pass


def secret_key(config: Config) -> str:
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
