"""How to make the first API key: ``serve`` prints this while no key exists."""

from __future__ import annotations

import shlex
from pathlib import Path

from helexa_site.program import default_data_dir

FIRST_ACCOUNT = "team"


def first_key_lines(
    data_dir: Path, program: str, *, is_open: bool, has_database_url: bool
) -> list[str]:
    """``is_open``: clients are served without one. ``program`` begins a command in a shell.
    ``has_database_url``: the database is the one that DATABASE_URL names, password and all, which
    is not repeated.

    The command works in the directory and with the environment in which ``serve`` was started.
    """
    if data_dir != default_data_dir():
        program = f"HELEXA_DATA_DIR={shlex.quote(str(data_dir))} {program}"
    who = "clients may have one" if is_open else "clients need one"
    where = " where DATABASE_URL is set as it is here" if has_database_url else ""
    return [
        f"there is none yet; {who}. To make one{where}:",
        f"{program} accounts create {FIRST_ACCOUNT} && {program} keys create {FIRST_ACCOUNT}",
    ]
