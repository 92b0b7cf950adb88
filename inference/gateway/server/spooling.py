"""Files for what may be small or large: in memory up to a size, then temporary files on disk."""

from __future__ import annotations

import tempfile
from typing import IO, cast

MAX_IN_MEMORY_BYTES = 1024 * 1024


def spooled_file() -> IO[bytes]:
    """Deleted when it is closed or forgotten. On disk it takes a file descriptor."""
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES))
