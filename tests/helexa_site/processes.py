"""Commands as they are typed, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection

from helexa_site.program import REPOSITORY_DIR

TIMEOUT_S = 300


def python(
    *arguments: str, unset: Collection[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python in the repository, in this environment without the ``unset`` variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY_DIR,
        env=inherited | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def manage(
    *words: str, unset: Collection[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    return python("manage.py", *words, unset=unset, **variables)
