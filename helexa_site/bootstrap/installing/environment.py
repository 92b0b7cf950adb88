"""Makes sure that the requirements are installed, in ``.venv`` where the running Python lacks them.

    running Python satisfies the pins ──▶ continue, install nothing
    else, outside .venv ──▶ make .venv (or mend it) ──▶ re-exec inside
    else, inside .venv  ──▶ pip install              ──▶ re-exec inside

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

from helexa_site.bootstrap.console import print_step
from helexa_site.bootstrap.errors import SetUpError
from helexa_site.bootstrap.installing.lock_files import (
    CPU_LABEL,
    OF_CUDA,
    OF_NEURON,
    cpu_build,
    locks_of,
    not_locked,
)
from helexa_site.bootstrap.installing.pip_run import PipOutcome, run_pip
from helexa_site.bootstrap.installing.requirements import (
    Requirement,
    installed_version,
    unmet_requirements,
    wheel_requirements,
)
from helexa_site.bootstrap.installing.torch_build import torch_here
from inference.settings.installation import ENVIRONMENT_ATTEMPT, REQUIRE_HASHES, VENV

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
MAX_ATTEMPTS = 3
"""How often a start re-executes itself: a guard against an endless loop."""
EXTRAS = {"requirements.txt": "neuron", "requirements-gateway.txt": ""}
"""A wheel's extra for each requirements file of a checkout."""
PIP_LOG = "pip.log"
"""The file in the environment that has pip's output."""
NAMES_SHOWN = 4
OTHER_HASH = "DO NOT MATCH THE HASHES"
NETWORK_TROUBLE = re.compile(
    r"NewConnectionError|ConnectTimeout|name resolution|Network is unreachable|Max retries"
    r"|Connection (refused|reset)|ProxyError|timed out|getaddrinfo",
    re.IGNORECASE,
)


def ensure_environment(requirements_name: str) -> None:
    """Return in an interpreter that satisfies the requirements file; re-exec to get there.

    Raises ``SetUpError`` with one line that names the remedy.
    """
    requirements = REPOSITORY_DIR / requirements_name
    if not requirements.is_file():
        ensure_wheel_has(EXTRAS[requirements_name])
        return
    unmet = unmet_requirements(requirements)
    if not unmet:
        os.environ.pop(ENVIRONMENT_ATTEMPT.name, None)
        return
    attempt = ENVIRONMENT_ATTEMPT.read(os.environ) + 1
    if attempt > MAX_ATTEMPTS:
        raise SetUpError(
            f"{venv_dir()} does not hold what {requirements_name} asks for "
            f"({_names(unmet)}); remove that directory and start again"
        )
    os.environ[ENVIRONMENT_ATTEMPT.name] = str(attempt)
    with _locked(venv_dir()):
        if not _is_inside(venv_dir()):
            _make_venv(venv_dir())
        elif unmet := unmet_requirements(requirements):
            install(requirements, unmet)
    _reexec(venv_dir())


def ensure_wheel_has(extra: str) -> None:
    """helexa installs nothing into an environment that a wheel is in: its maker adds what lacks.

    Raises ``SetUpError`` where packages of the wheel or of that extra are not installed."""
    try:
        wanted = list(wheel_requirements(extra=extra))
    except PackageNotFoundError:
        return  # run from its files, without pip's records
    missing = [one for one in wanted if installed_version(one.name) is None]
    if missing and extra:
        raise SetUpError(
            f"this helexa was installed without its extra {extra!r}, which loading models needs "
            f"({_names(missing)}): install its wheel as in pip install 'helexa-….whl[{extra}]', or "
            "let other hosts load models and start serve with --no-neuron"
        )
    if missing:
        raise SetUpError(f"{_names(missing)} is not installed: install helexa's wheel again")


def default_data_dir() -> Path:
    """Returns the data directory where HELEXA_DATA_DIR is unset: the checkout's ``var``, or for a
    wheel the user's."""
    if (REPOSITORY_DIR / "manage.py").is_file():
        return REPOSITORY_DIR / "var"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "helexa"


def venv_dir() -> Path:
    return (VENV.read(os.environ) or REPOSITORY_DIR / ".venv").absolute()


def _is_inside(venv: Path) -> bool:
    return Path(sys.prefix).resolve() == venv.resolve()


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


@contextlib.contextmanager
def _locked(venv: Path) -> Iterator[None]:
    """One start at a time makes or fills the environment; the others wait and find it done."""
    try:
        venv.mkdir(parents=True, exist_ok=True)
        directory = os.open(venv, os.O_RDONLY)
    except OSError as error:
        raise SetUpError(f"cannot make {venv}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_step("environment", f"another start is at work in {venv}; waiting for it")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _make_venv(venv: Path) -> None:
    """Make the environment, or remake one that was left half made; a whole one is left alone."""
    if (venv / "pyvenv.cfg").is_file() and _runs(_python(venv)):
        return
    _check_is_ours(venv, "its Python does not run as this user")
    print_step("environment", f"making {venv}")
    # Without pip, which comes after: ensurepip is the part that Debian packages separately.
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise SetUpError(f"cannot make {venv}: {_last_line(made.stderr or made.stdout)}")


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([python, "-I", "-S", "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def _check_is_ours(venv: Path, problem: str) -> None:
    """Raises ``SetUpError`` for an environment that another user has made: it is theirs to mend,
    and clearing it here would leave a half of it."""
    places = (venv, venv / "bin", venv / PIP_LOG, *venv.glob("lib/python*/site-packages"))
    for place in places:
        if place.exists() and not os.access(place, os.W_OK):
            raise SetUpError(
                f"{problem}, and {place} cannot be written: start as the user who made {venv} "
                f"({_owner(place)}), or name another directory in {VENV.name}"
            )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # no name for it here, as in a container
        return f"the user id {path.stat().st_uid}"


def install(requirements: Path, unmet: list[Requirement]) -> None:
    _check_is_ours(venv_dir(), f"the environment lacks {_names(unmet)}")
    _ensure_pip()
    locks = locks_of(requirements, os.environ)
    if locks and (others := not_locked(unmet, locks)):
        print_step(
            "environment", f"the lock files do not have {_names(others)}: hashes are not checked"
        )
        locks = ()
    if (build := torch_here(unmet)) is not None:
        print_step("environment", build.words)
        if build.index is not None or (locks and not build.has_cuda):
            torch = next(one for one in unmet if one.name == "torch")
            _install_torch(str(torch), build.index, cpu_build(torch, locks))
    print_step("environment", f"installing {requirements.name}: {_names(unmet)}")
    wanted = ["--require-hashes", *_each(_with_cuda(locks))] if locks else _each([requirements])
    pip = _pip(*wanted)
    if pip.return_code != 0:
        raise SetUpError(_install_failure(requirements, pip.output))


def _each(paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in ("--requirement", str(path))]


def _with_cuda(locks: tuple[Path, ...]) -> tuple[Path, ...]:
    """Torch's build with CUDA's libraries, unless one without them is installed already."""
    needs_cuda = (
        sys.platform == "linux"
        and locks[-1].name == OF_NEURON
        and not (installed_version("torch") or "").endswith(CPU_LABEL)
    )
    return (*locks, locks[-1].with_name(OF_CUDA)) if needs_cuda else locks


def _install_torch(wanted: str, index: str | None, locked: str) -> None:
    """Alone: what it needs comes with the rest. Where this fails the rest brings a torch along.
    ``locked``: of a lock file; empty: its hash is not checked."""
    source = () if index is None else ("--index-url", index)
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
        lock.write(locked)
        lock.flush()
        what = ("--require-hashes", "--requirement", lock.name) if locked else (wanted,)
        pip = _pip("--no-deps", *source, *what)
    if pip.return_code != 0:
        if OTHER_HASH in pip.output:
            raise SetUpError(_other_hash(wanted))
        place = index or "the package index"
        print_step("environment", f"{place} does not have {wanted} for this Python and machine")


def _pip(*arguments: str) -> PipOutcome:
    return run_pip(arguments, venv_dir() / PIP_LOG)


def _install_failure(requirements: Path, pip_output: str) -> str:
    if OTHER_HASH in pip_output:
        return _other_hash(requirements.name)
    if NETWORK_TROUBLE.search(pip_output):
        return (
            f"cannot install {requirements.name}: no package index can be reached; "
            "check the network (or PIP_INDEX_URL) and start again"
        )
    return f"cannot install {requirements.name}: {_last_line(pip_output)}"


def _other_hash(what: str) -> str:
    return (
        f"cannot install {what}: the package index has another file than the one that was locked, "
        f"which may be somebody's attack; if it builds packages itself, set {REQUIRE_HASHES.name}=0"
    )


def _ensure_pip() -> None:
    if importlib.util.find_spec("pip") is not None:
        return
    made = subprocess.run(
        [sys.executable, "-m", "ensurepip", "--upgrade"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise SetUpError(
            "this Python comes without pip (ensurepip); install it (on Debian and Ubuntu: "
            "apt install python3-venv) and start again"
        )


def _reexec(venv: Path) -> NoReturn:
    python = _python(venv)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [str(python), *sys.argv])


def _names(unmet: list[Requirement]) -> str:
    names = ", ".join(str(wanted) for wanted in unmet[:NAMES_SHOWN])
    rest = len(unmet) - NAMES_SHOWN
    return names if rest <= 0 else f"{names} and {rest} more"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
