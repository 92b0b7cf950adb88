"""The kind of this installation, and its command for usage lines and hints, which are printed
before anything is installed: standard library only."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from enum import Enum
from pathlib import Path

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
CHECKOUT_PROGRAM = "manage.py"
INSTALLED_PROGRAM = "helexa"


class Installation(Enum):
    """The value names where the same kind of installation is found on another host."""

    CHECKOUT = "in a checkout of helexa"
    WHEEL = "with helexa's wheel and its extra neuron"
    PACKAGES = "with the packages helexa-common and helexa-neuron"


def installation() -> Installation:
    """The packages are a checkout's code without its tests; a wheel has no ``manage.py``."""
    if (REPOSITORY_DIR / "requirements-dev.txt").is_file():
        return Installation.CHECKOUT
    is_packaged = (REPOSITORY_DIR / CHECKOUT_PROGRAM).is_file()
    return Installation.PACKAGES if is_packaged else Installation.WHEEL


def default_data_dir() -> Path:
    if installation() is not Installation.WHEEL:
        return REPOSITORY_DIR / "var"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "helexa"


def program() -> str:
    is_checkout = installation() is Installation.CHECKOUT
    return CHECKOUT_PROGRAM if is_checkout else INSTALLED_PROGRAM


def pasteable_program() -> str:
    match installation():
        case Installation.CHECKOUT:
            is_path = Path(sys.argv[0]).name == CHECKOUT_PROGRAM
            return f"python3 {shlex.quote(sys.argv[0] if is_path else CHECKOUT_PROGRAM)}"
        case Installation.PACKAGES:
            return f"sudo {INSTALLED_PROGRAM}"
        case Installation.WHEEL:
            return _wheel_program(sys.argv[0])


def neuron_program() -> str:
    return {
        Installation.CHECKOUT: f"python3 {CHECKOUT_PROGRAM}",
        Installation.WHEEL: INSTALLED_PROGRAM,
        Installation.PACKAGES: f"sudo {INSTALLED_PROGRAM} --neuron",
    }[installation()]


def _wheel_program(called: str) -> str:
    if Path(called).name != INSTALLED_PROGRAM:
        return f"{shlex.quote(sys.executable)} -m helexa_site"
    found = shutil.which(INSTALLED_PROGRAM)
    is_found = found is not None and Path(found).resolve() == Path(called).resolve()
    return INSTALLED_PROGRAM if is_found else shlex.quote(called)
