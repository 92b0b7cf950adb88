"""Which instance of helexa a server is: the id in its data directory, new for each directory.

Gateways send it with ``/health`` and ``/metrics``, so that commands on the same machine do not
take another instance's port for theirs. It is no secret.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from pathlib import Path

from helexa_site.kept_file import keep_once

INSTANCE_FILE = "instance_id"
INSTANCE_BYTES = 16
INSTANCE_HEADER = "x-helexa-instance"


def known_instance_id(data_dir: Path) -> str | None:
    """``None``: no gateway has run on it yet, or could write there."""
    try:
        return (data_dir / INSTANCE_FILE).read_text().strip() or None
    except OSError:
        return None


@lru_cache(maxsize=8)
def instance_id(data_dir: Path) -> str | None:
    """The first process that asks writes it. ``None``: the directory cannot be written."""
    if (known := known_instance_id(data_dir)) is None:
        try:
            keep_once(data_dir / INSTANCE_FILE, secrets.token_hex(INSTANCE_BYTES))
        except OSError:
            return None
        known = known_instance_id(data_dir)
    return known
