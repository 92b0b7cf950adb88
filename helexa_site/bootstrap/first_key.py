"""How to make the first API key: what ``serve`` says while there is none."""

from __future__ import annotations

import shlex
from pathlib import Path

from helexa_site.bootstrap.arguments import is_loopback
from helexa_site.config import REPOSITORY_DIR

FIRST_ACCOUNT = "team"


def first_key_lines(host: str, data_dir: Path, manage: str) -> list[str]:
    """``manage`` is the program as it was called. The command works in the directory and with the
    environment in which ``serve`` was started."""
    program = f"python3 {shlex.quote(manage)}"
    if data_dir != REPOSITORY_DIR / "var":
        program = f"HELEXA_DATA_DIR={shlex.quote(str(data_dir))} {program}"
    who = "clients on this machine need none" if is_loopback(host) else "clients need one"
    return [
        f"there is none yet; {who}. To make one:",
        f"{program} accounts create {FIRST_ACCOUNT} && {program} keys create {FIRST_ACCOUNT}",
    ]
