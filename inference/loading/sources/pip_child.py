"""Downloads one wheel with pip's indexes, certificates, proxies and passwords.

    python pip_child.py PARENT_PID REQUIREMENT DIRECTORY

    DIRECTORY/wheel.json          {"name": …, "num_bytes": …, "hash": …}, once an index named it
    DIRECTORY/<name>.incomplete   its bytes so far, which the next call for the same wheel continues
    DIRECTORY/<name>              the wheel, whole and as the index's hash wants it

pip never resumes a wheel. So this program asks pip for the wheel's address, through calls that are
not public, and transfers it itself. A pip without one of them downloads the wheel, and a warning is
logged.

It is a program of its own and ends with its parent, however that ended: an engine process ends as
soon as its neuron does, and a download must not outlive it. On Linux the kernel ends it. Started by
file name, so it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
CHUNK_BYTES = 1024 * 1024
MAX_BREAKS = 5
"""Breaks of the transfer in a row that brought nothing."""
FLAGS = (
    "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
    "--disable-pip-version-check", "--progress-bar=off",
)  # fmt: skip


class WheelError(Exception):
    """The downloaded wheel is not the expected one; the message gives the difference."""


def die_with_parent(parent_pid: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it was quicker
        sys.exit(1)


def main(requirement: str, directory: Path) -> int:
    """The exit code. What went wrong is a line that starts with ERROR."""
    logging.addLevelName(logging.CRITICAL, "ERROR")  # pip's own word for it
    logging.basicConfig(
        stream=sys.stdout, format="%(levelname)s: %(message)s", level=logging.WARNING
    )
    try:
        from pip._internal.commands import create_command
        from pip._internal.exceptions import PipError
        from pip._vendor.requests.exceptions import RequestException

        command: Any = create_command("download")
        options, _ = command.parse_args([*FLAGS, requirement])
        with command.main_context():
            session = command.get_default_session(options)
            link = _locate(command, options, session, requirement)
            _fetch(session, link, directory)
    except (ImportError, AttributeError, TypeError) as error:
        logging.warning("this pip does not answer where a wheel is (%s): it starts anew", error)
        return _pip_download(requirement, directory)
    except (PipError, WheelError, RequestException, OSError) as error:
        logging.error("%s", error)
        return 1
    return 0


def _locate(command: Any, options: Any, session: Any, requirement: str) -> Any:
    """pip's ``Link`` to the best wheel. Raises ``PipError``."""
    from pip._internal.req.constructors import install_req_from_line

    finder = command._build_package_finder(options=options, session=session)
    return finder.find_requirement(install_req_from_line(requirement), upgrade=True).link


def _fetch(session: Any, link: Any, directory: Path) -> None:
    from pip._internal.exceptions import HashMismatch

    hashes = link.as_hashes()
    hash_text = f"{link.hash_name}={link.hash}" if link.hash else ""
    partial = directory / f"{link.filename}.incomplete"
    if _wheel_before(directory) != (link.filename, hash_text):
        for path in (*directory.glob("*.incomplete"), *directory.glob("*.whl")):
            path.unlink()  # of another wheel
    if (whole := directory / link.filename).exists():  # a download that was never extracted
        whole.replace(partial)
    was_begun = partial.exists()
    wheel = {"name": link.filename, "hash": hash_text}
    breaks = 0
    while True:
        done = partial.stat().st_size if partial.exists() else 0
        try:
            if _continue(session, link, partial, done, directory, wheel):
                break
        except OSError as error:  # its transport's errors are some, too
            if getattr(error, "response", None) is not None or error.errno is not None:
                raise  # a refusal, or the disk's
            logging.warning("%s: continued", error)
        now = partial.stat().st_size if partial.exists() else 0
        breaks = 0 if now > done else breaks + 1
        if breaks >= MAX_BREAKS:
            raise WheelError(f"{link.filename} broke off at {now} bytes {breaks} times")
    try:
        if hash_text:
            hashes.check_against_path(str(partial))
    except HashMismatch as error:
        partial.unlink()
        if not was_begun:
            raise
        logging.warning("what was there was damaged, and starts anew: %s", error)
        _fetch(session, link, directory)
    else:
        partial.replace(whole)


def _continue(
    session: Any, link: Any, partial: Path, done: int, directory: Path, wheel: dict[str, Any]
) -> bool:
    """Appends to the ``done`` bytes that are there. Whether the wheel is whole now."""
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    response = session.get(link.url_without_fragment, headers=headers, stream=True)
    if response.status_code == 416:  # all of it is there, or more than there is
        total = int(response.headers.get("Content-Range", "").rpartition("/")[2] or 0)
        if total != done:
            partial.unlink()
        return total == done
    response.raise_for_status()
    is_rest = response.status_code == 206
    length = int(response.headers.get("Content-Length") or 0)
    num_bytes = (done if is_rest else 0) + length
    (directory / "wheel.json").write_text(json.dumps(wheel | {"num_bytes": num_bytes}))
    with partial.open("ab" if is_rest else "wb") as file:
        for chunk in response.iter_content(CHUNK_BYTES):
            file.write(chunk)
            file.flush()
        return not num_bytes or file.tell() == num_bytes


def _wheel_before(directory: Path) -> tuple[str, str]:
    """Name and hash of the wheel whose partial file may be there."""
    try:
        before = json.loads((directory / "wheel.json").read_text())
    except (OSError, ValueError):
        return "", ""
    return before.get("name", ""), before.get("hash", "")


def _pip_download(requirement: str, directory: Path) -> int:
    sys.argv[1:] = ["download", *FLAGS, "--dest", str(directory), requirement]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2], Path(sys.argv[3])))
