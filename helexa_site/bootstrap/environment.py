"""Installs the requirements, in ``.venv`` where the running Python lacks them. An install empties
the stamp at its beginning and writes it at its end, so that the next start repeats an interrupted
one. Standard library only at import: this runs before anything is installed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from helexa_site.bootstrap.console import BootstrapError, print_line, print_step
from helexa_site.program import REPOSITORY_DIR
from helexa_site.whole_file import try_lock
from inference.settings.installation import (
    ENVIRONMENT_ATTEMPT,
    REQUIRE_HASHES,
    TORCH_CPU_INDEX,
    VENV,
)

if TYPE_CHECKING:
    from packaging.requirements import Requirement

MAX_ATTEMPTS = 3
EXTRAS = {"requirements.txt": "neuron", "requirements-gateway.txt": ""}
LOCKS_OF = {
    "requirements-gateway.txt": ("requirements-gateway.lock",),
    "requirements.txt": ("requirements-gateway.lock", "requirements-neuron.lock"),
}
CPU_LOCK, CUDA_LOCK = "requirements-cpu.lock", "requirements-cuda.lock"
STAMP = "installed-requirements"
PIP_LOG = "pip.log"
DRIVER_SIGNS = (
    "/proc/driver/nvidia/version",
    "/dev/nvidiactl",
    "/dev/dxg",  # WSL passes the host's driver through this
)
CPU_SIZE, CUDA_SIZE = "about 200 MB", "about 3.5 GB"
FAILURE_LINES = 12
NAMES_SHOWN = 4
PROGRESS = re.compile(r"Downloading .*(\d{2,}\.\d M|\d G)B\)|Installing collected")
MAX_SHOWN_CHARACTERS = 100
OTHER_HASH = "DO NOT MATCH THE HASHES"
NETWORK_TROUBLE = re.compile(
    r"NewConnectionError|ConnectTimeout|name resolution|Network is unreachable|Max retries"
    r"|Connection (refused|reset)|ProxyError|timed out|getaddrinfo",
    re.IGNORECASE,
)


def ensure_environment(requirements_name: str) -> None:
    """Returns in an interpreter that satisfies the file, after a re-exec if needed. Raises
    ``BootstrapError``."""
    requirements, venv = REPOSITORY_DIR / requirements_name, venv_dir()
    if not requirements.is_file():
        ensure_wheel_has(EXTRAS[requirements_name])
        return
    if _is_installed(requirements, venv):
        os.environ.pop(ENVIRONMENT_ATTEMPT.name, None)
        return
    attempt = ENVIRONMENT_ATTEMPT.read(os.environ) + 1
    if attempt > MAX_ATTEMPTS:
        raise BootstrapError(
            f"{venv} does not hold what {requirements_name} asks for; remove that directory and "
            "start again"
        )
    os.environ[ENVIRONMENT_ATTEMPT.name] = str(attempt)
    with _locked(venv):
        if not _is_inside(venv):
            _make_venv(venv)
        elif not _is_installed(requirements, venv):  # another start may have done it meanwhile
            _check_is_ours(venv, f"the environment lacks what {requirements_name} asks for")
            (venv / STAMP).write_text("")
            install(requirements)
            stamps = [stamp_of(one) for one in files_of(requirements)]
            (venv / STAMP).write_text("\n".join(stamps))
    reenter(venv)


def ensure_wheel_has(extra: str) -> None:
    """Installs nothing: in a wheel's environment the user adds missing packages."""
    try:
        pins = metadata.requires("helexa") or []
    except metadata.PackageNotFoundError:
        return  # run from its files, without pip's records
    missing = [str(one) for one in applying(pins, extra) if installed_version(one.name) is None]
    if not missing:
        return
    names = ", ".join(missing[:NAMES_SHOWN])
    if len(missing) > NAMES_SHOWN:
        names += f" and {len(missing) - NAMES_SHOWN} more"
    if extra:
        raise BootstrapError(
            f"this helexa was installed without its extra {extra!r}, which loading models needs "
            f"({names}): install its wheel as in pip install 'helexa-….whl[{extra}]', or let other "
            "hosts load models and start serve with --no-neuron"
        )
    raise BootstrapError(f"{names} is not installed: install helexa's wheel again")


def venv_dir() -> Path:
    return (VENV.read(os.environ) or REPOSITORY_DIR / ".venv").absolute()


def files_of(requirements: Path) -> Iterator[Path]:
    yield requirements
    for line in requirements.read_text().splitlines():
        if line.startswith("-r "):
            yield from files_of(requirements.with_name(line.removeprefix("-r ").strip()))


def pins_of(requirements: Path) -> list[str]:
    lines = [line for file in files_of(requirements) for line in file.read_text().splitlines()]
    pins = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in lines)
    return [pin for pin in pins if pin and not pin.startswith("-r ")]


def pins_line(requirements: Path) -> str:
    return f"# Pins: sha256:{_sha256(pins_of(requirements))}\n"


def stamp_of(requirements: Path) -> str:
    locked = [lock.read_text() for lock in _locks_of(requirements)]
    return _sha256([*map(str, sys.version_info[:2]), *pins_of(requirements), *locked])


def unmet(pins: Iterable[str], extra: str = "") -> list[str]:
    """``2.13.0+cpu`` satisfies ``==2.13.0``."""
    pins = list(pins)
    try:
        wanted = applying(pins, extra)
    except ImportError:  # the requirements include packaging: none of them are installed
        return pins
    versions = {one.name: installed_version(one.name) for one in wanted}
    return [
        str(one)
        for one in wanted
        if (version := versions[one.name]) is None or not one.specifier.contains(version)
    ]


def applying(pins: Iterable[str], extra: str = "") -> list[Requirement]:
    """Raises ``ImportError`` before the requirements are installed."""
    from packaging.requirements import Requirement

    return [
        wanted
        for wanted in map(Requirement, pins)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra})
    ]


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install(requirements: Path) -> None:
    has_pip = importlib.util.find_spec("pip") is not None
    if not has_pip and not _run(sys.executable, "-m", "ensurepip", "--upgrade")[0]:
        raise BootstrapError(
            "this Python comes without pip (ensurepip); install it (on Debian and Ubuntu: "
            "apt install python3-venv) and start again"
        )
    locks = _locks_of(requirements)
    if locks and pins_line(requirements) not in locks[-1].read_text():
        _report(
            f"the lock files are of other pins than {requirements.name}: hashes are not checked"
        )
        locks = []
    torch = next((pin for pin in pins_of(requirements) if pin.startswith("torch==")), None)
    if torch is not None:
        if unmet([torch]):
            is_for_cpus = _install_torch_for_cpus(torch, is_locked=bool(locks))
        else:
            is_for_cpus = (installed_version("torch") or "").endswith("+cpu")
        if locks and not is_for_cpus:
            locks.append(REPOSITORY_DIR / CUDA_LOCK)
    _report(f"installing {requirements.name}")
    is_done, output = _pip(*_files(locks) if locks else ("--requirement", str(requirements)))
    if not is_done:
        for line in output.splitlines()[-FAILURE_LINES:]:
            print_line(f"  {line}")
        raise BootstrapError(_install_failure(requirements.name, output))


def _install_torch_for_cpus(pin: str, *, is_locked: bool) -> bool:
    """Alone, because torch's index has old copies of other packages; its dependencies come
    later."""
    if sys.platform != "linux":
        return False
    if any(Path(sign).exists() for sign in DRIVER_SIGNS):
        _report(f"there is an NVIDIA driver: torch with CUDA, {CUDA_SIZE} with its libraries")
        return False
    index, words = TORCH_CPU_INDEX.read(os.environ), ["--no-deps"]
    if index:  # the package index may have the locked files too
        words += ["--extra-index-url" if is_locked else "--index-url", index]
    if index or is_locked:
        place = index or "the package index"
        _report(f"no NVIDIA driver: torch for CPUs, {CPU_SIZE}, from {place}")
        words += _files([REPOSITORY_DIR / CPU_LOCK]) if is_locked else [pin]
        is_done, output = _pip(*words)
        if is_done:
            return True
        if OTHER_HASH in output:
            raise BootstrapError(_install_failure(pin, output))
        _report(f"{place} does not have {pin} for CPUs, or does not answer")
    _report(
        f"what pip finds, and from PyPI that is {CUDA_SIZE} of CUDA. Ctrl-C stops it; "
        f"{TORCH_CPU_INDEX.name} names another index"
    )
    return False


def _locks_of(requirements: Path) -> list[Path]:
    if not REQUIRE_HASHES.read(os.environ):
        return []
    paths = [requirements.with_name(name) for name in LOCKS_OF.get(requirements.name, ())]
    return paths if all(path.is_file() for path in paths) else []


def _files(locks: list[Path]) -> list[str]:
    files = [word for path in locks for word in ("--requirement", str(path))]
    return ["--require-hashes", *files]


def _is_installed(requirements: Path, venv: Path) -> bool:
    if _is_inside(venv) and (venv / STAMP).exists():
        return stamp_of(requirements) in (venv / STAMP).read_text().split()
    return not unmet(pins_of(requirements))


def _is_inside(venv: Path) -> bool:
    return Path(sys.prefix).resolve() == venv.resolve()


@contextlib.contextmanager
def _locked(venv: Path) -> Iterator[None]:
    """One start at a time makes or fills the environment; the others wait and find it done."""
    try:
        venv.mkdir(parents=True, exist_ok=True)
        directory = os.open(venv, os.O_RDONLY)
    except OSError as error:
        raise BootstrapError(f"cannot make {venv}: {error.strerror}") from error
    try:
        if not try_lock(directory):
            _report(f"another start is at work in {venv}; waiting for it")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _make_venv(venv: Path) -> None:
    if (venv / "pyvenv.cfg").is_file() and _run(venv / "bin" / "python", "-I", "-S", "-c", "")[0]:
        return
    _check_is_ours(venv, "its Python does not run as this user")
    _report(f"making {venv}")
    # Without pip, which comes after: Debian packages ensurepip separately.
    is_made, output = _run(sys.executable, "-m", "venv", "--clear", "--without-pip", venv)
    if not is_made:
        raise BootstrapError(f"cannot make {venv}: {_last_line(output)}")


def _check_is_ours(venv: Path, problem: str) -> None:
    """Clearing another user's environment here would leave a half of it."""
    if os.access(venv, os.W_OK):
        return
    try:
        owner = venv.owner()
    except KeyError:  # no name for it here, as in a container
        owner = f"the user id {venv.stat().st_uid}"
    raise BootstrapError(
        f"{problem}, and {venv} cannot be written: start as the user who made it ({owner}), "
        f"or name another directory in {VENV.name}"
    )


def reenter(venv: Path) -> None:
    python = venv / "bin" / "python"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [str(python), *sys.argv])


def _report(text: str) -> None:
    print_step("environment", text)


def _pip(*arguments: str) -> tuple[bool, str]:
    # Unbuffered, so that a line is there when it happens.
    command = [sys.executable, "-u", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--no-input", "--retries", "2"]
    if not sys.dont_write_bytecode:
        # Python compiles imported modules itself: a small part. All takes pip a minute.
        command += ["--no-compile"]
    log_path = venv_dir() / PIP_LOG
    _report(f"pip's output: {log_path}")
    output = ""
    with (
        log_path.open("a") as log,
        subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        for line in process.stdout or ():
            output += line
            # A full disk: pip reports it itself, if its output is read on.
            with contextlib.suppress(OSError):
                log.write(line)
                log.flush()
            if PROGRESS.search(line):
                _report(line.strip()[:MAX_SHOWN_CHARACTERS])
    return process.returncode == 0, output


def _install_failure(what: str, pip_output: str) -> str:
    reason = _last_line(pip_output)
    if OTHER_HASH in pip_output:
        reason = (
            "the package index has another file than the one that was locked, which may be "
            f"somebody's attack; if it builds packages itself, set {REQUIRE_HASHES.name}=0"
        )
    elif NETWORK_TROUBLE.search(pip_output):
        reason = (
            "no package index can be reached; check the network (or PIP_INDEX_URL) and start again"
        )
    return f"cannot install {what}: {reason}"


def _run(*command: str | Path) -> tuple[bool, str]:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        return False, str(error)
    return done.returncode == 0, done.stdout + done.stderr


def _sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
