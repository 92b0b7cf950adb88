"""The commands' access to the fleet, and following jobs until they have ended.

--url, --key (HELEXA_URL, HELEXA_API_KEY) ─▶ RestBackend
neither                                   ─▶ LocalBackend, with the database of this machine
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.client import HTTPException
from time import sleep
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import Error as DjangoDatabaseError

from fleet.words import share_text, size_text
from helexa_site.management.base import ExitCode, checked_url, exit_code
from helexa_site.program import program
from inference import proxies
from inference.settings.gateway import API_KEY
from inference.settings.installation import URL
from inference.version import VERSION
from metering.output import database_words

TIMEOUT_S = 60.0
NO_ANSWER = (OSError, ValueError, HTTPException)
"""Errors where no server runs, or another one than meant."""
PAGE = 500
LOOK_EVERY_S = 1.0
DOWNLOAD_EVERY_S = 0.5
REPORT_EVERY_PERCENT = 10
OR_A_SERVER = "--url asks a running server instead."


class RefusedError(CommandError):
    """A server refused a request, or did not answer (status 0)."""

    def __init__(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        code = exit_code(status) if status else ExitCode.UNAVAILABLE
        super().__init__(reason, returncode=code)
        self.status = status
        self.retry_after_s = retry_after_s


class Server:
    def __init__(self, url: str, key: str | None, *, timeout_s: float, hint: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._timeout_s = timeout_s
        self._hint = hint

    def open(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        """GET, or POST where there is a body. Raises ``RefusedError``."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers=self._headers, method=method
        )
        with self._refusals():
            return proxies.open_url(request, timeout=self._timeout_s)

    def read(self, path: str, body: object = None, *, method: str | None = None) -> bytes:
        """Raises ``RefusedError``."""
        with self.open(path, body, method=method) as response, self._refusals():
            content: bytes = response.read()
        return content

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            word = error.headers.get("retry-after", "")
            retry_after_s = float(word) if word.isdigit() else None
            raise RefusedError(error.code, refusal_of(error), retry_after_s) from error
        except NO_ANSWER as error:
            raise RefusedError(0, f"{self.url} does not answer: {error}{self._hint}") from error


class RestBackend:
    """``ask`` returns the JSON of ``/api/{path}``. Raises ``CommandError``."""

    def __init__(self, url: str, key: str | None) -> None:
        self._server = Server(url, key, timeout_s=TIMEOUT_S)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = self._server.read(f"/api/{path}", body, method=method)
        with self.understood():
            return _json(content)

    def understood(self) -> AbstractContextManager[None]:
        return understood(self._server.url)


class LocalBackend:
    """The API's views in this process: an operator who can run ``manage.py`` may do everything."""

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        from fleet.api.access import command_answer  # a server's commands need no views

        try:
            status, content = command_answer(method, path, body)
        except DjangoDatabaseError as error:
            reason = f"{database_words(error)} {OR_A_SERVER}"
            raise CommandError(reason, returncode=ExitCode.UNAVAILABLE) from error
        if status >= 400:
            raise CommandError(refusal_text(status, content), returncode=exit_code(status))
        return _json(content)

    def understood(self) -> AbstractContextManager[None]:
        return nullcontext()


Backend = RestBackend | LocalBackend
Show = Callable[[dict[str, Any]], None]


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Raises ``CommandError`` where that server's JSON is not as this version answers."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise CommandError(
            f"{url} does not answer as helexa {VERSION} does: another version is there, or "
            "something else"
        ) from error


def add_backend_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--url", help="of a server, as http://gpu-box:31313 (or HELEXA_URL)")
    parser.add_argument("--key", help="an API key with the scopes for this (or HELEXA_API_KEY)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def backend_of(options: dict[str, Any]) -> Backend:
    url = options["url"] or URL.read(os.environ)
    if not url:
        if options["key"]:
            # For nouns with a key of their own, which --on-key names.
            has_keys = any(name.endswith("_key") for name in options)
            meant = "; rows of one key: --on-key" if has_keys else ""
            raise CommandError(f"--key is the caller's key for --url (or HELEXA_URL){meant}")
        return LocalBackend()
    return RestBackend(checked_url(url), options["key"] or API_KEY.read(os.environ))


def ensure_gateways_could_check(backend: Backend) -> None:
    """Raises ``CommandError`` where this process signs and seals with a secret key of its own."""
    if isinstance(backend, LocalBackend) and not settings.CONFIG.secret_key_is_kept:
        raise CommandError(
            "No gateway could read this key: start one here first, set HELEXA_SECRET_KEY to "
            f"theirs, or HELEXA_DATA_DIR to the directory that {program()} serve uses"
        )


def rows_of(backend: Backend, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    joint = "&" if "?" in path else "?"
    while True:
        page = backend.ask("GET", f"{path}{joint}limit={PAGE}&offset={len(rows)}")
        rows += page["data"]
        if not page["data"] or len(rows) >= page["num_rows"]:
            return rows


def _json(content: bytes) -> Any:
    return json.loads(content) if content else None


def refusal_of(error: urllib.error.HTTPError) -> str:
    try:
        content = error.read()
    except NO_ANSWER:
        content = b""
    return refusal_text(error.code, content)


def refusal_text(status: int, content: bytes) -> str:
    try:
        problem = json.loads(content)
        if isinstance(error := problem.get("error"), dict):
            return str(error["message"])
        if error is not None:  # the original's paths, whose error is a text
            return str(error)
        param = f"{problem['param']}: " if problem.get("param") else ""
        return f"{param}{problem['detail']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the server answers {status}"


def follow(
    backend: Backend,
    jobs: list[dict[str, Any]],
    report: Callable[[str], object],
    *,
    sleep: Callable[[float], None] = sleep,
) -> list[dict[str, Any]]:
    """Raises ``CommandError`` when one did not succeed."""
    ended, reported = [], ""
    for job in jobs:
        while job["finished_at"] is None:
            if (line := job_line(job)) != reported:
                report(line)
                reported = line
            sleep(LOOK_EVERY_S)
            job = backend.ask("GET", f"load-jobs/{job['id']}")
        report(job_line(job))
        ended.append(job)
    for job in ended:
        if job["status"] != "succeeded":
            raise CommandError(job["failure_message"] or job_line(job))
    return ended


def job_line(job: dict[str, Any]) -> str:
    words = [f"{job['kind']} {job['model']} on {job['neuron']}:", job["status"]]
    if job["status"] == "running" and job["stage"]:
        words += [job["stage"], share_text(job["progress_fraction"])]
    if job["status"] == "pending" and job["note"]:
        words.append(f"({job['note']})")
    return " ".join(filter(None, [*words, job["failure_message"]]))


def follow_download(backend: Backend, download: dict[str, Any], stream: Any) -> dict[str, Any]:
    """An interrupt cancels the download. Raises ``CommandError`` when it did not succeed."""
    path = f"downloads/{download['id']}"
    with (_bar if stream.isatty() else _lines)(stream) as show:
        try:
            while download["finished_at"] is None:
                show(download)
                sleep(DOWNLOAD_EVERY_S)
                download = backend.ask("GET", path)
        except KeyboardInterrupt:
            backend.ask("POST", f"{path}/cancel", {})
            raise CommandError(
                f"The download is cancelled on {download['neuron']}; the next pull resumes it"
            ) from None
        show(download)
    if download["status"] != "succeeded":
        raise CommandError(download["failure_message"] or download_line(download))
    return download


def download_line(download: dict[str, Any]) -> str:
    what = f"{download['source']} {download['file']}".strip()
    words = [f"{download['kind']} {what} on {download['neuron']}:", download["status"]]
    if total := download["bytes_total"]:
        words.append(f"{share_text(download['bytes_done'] / total)} of {size_text(total)}")
    return " ".join(filter(None, [*words, download["failure_message"]]))


@contextmanager
def _bar(stream: Any) -> Iterator[Show]:
    from rich import progress  # for people alone, and slow to import
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(file=stream, markup=False)) as shown:
        task = shown.add_task("", total=None)

        def show(download: dict[str, Any]) -> None:
            shown.update(
                task,
                description=f"{download['neuron']}: {download['status']}",
                completed=download["bytes_done"],
                total=download["bytes_total"] or None,
            )

        yield show


@contextmanager
def _lines(stream: Any) -> Iterator[Show]:
    printed: tuple[str, int] | None = None

    def show(download: dict[str, Any]) -> None:
        nonlocal printed
        percent = int((download["progress_fraction"] or 0.0) * 100)
        now = (download["status"], percent // REPORT_EVERY_PERCENT)
        if now != printed:
            printed = now
            stream.write(download_line(download))

    yield show
