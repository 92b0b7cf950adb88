"""Fetches and checks a load's files, in processes that are killed when the load is cancelled.

A check that gives no answer stops no load: the engine reads the same files. Replicas and pulls call
from their threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from inference.environment import Role, child_environment
from inference.loading.file_check import FileCheckOrder, FileCheckResult, decode_result
from inference.loading.progress import OnProgress
from inference.loading.sources.cached import cached_directory, delete_cached
from inference.loading.sources.fetch import (
    Fetched,
    FetchFailed,
    Fetching,
    FetchOrder,
    decode_message,
)
from inference.loading.sources.hub_sources import is_downloaded
from inference.loading.sources.sources import fetch_files, is_on_disk
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.watch import LoadWatch
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage, PackedCosts
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


CANCEL_POLL_S = 0.1


def run_order(
    command: Sequence[str],
    order: msgspec.Struct,
    on_line: Callable[[bytes], None],
    is_cancelled: Callable[[], bool],
) -> int:
    """``command`` gets ``order`` on its stdin, which stays open as long as this process lives.
    Lines that are no messages are skipped: libraries print them. Another thread polls
    ``is_cancelled``. Returns the exit code. Raises ``OSError``."""
    ended = threading.Event()
    with (
        contextlib.suppress(BrokenPipeError),
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Progress is sent in messages.
            env={**child_environment(Role.ENGINE), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            start_new_session=True,
        ) as process,
    ):

        def watch() -> None:
            while not ended.wait(CANCEL_POLL_S):
                if is_cancelled():
                    _kill(process)
                    return

        SupervisedThread(watch, name="order-cancel").start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                with contextlib.suppress(msgspec.DecodeError):
                    on_line(line)
        finally:
            ended.set()
            _kill(process)
    return process.returncode


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


CHECK_COMMAND = (sys.executable, "-m", "inference.loading.file_check")
LIMIT_S = 30.0
"""Most files take a second; an architecture of which transformers decides takes several."""


class FileChecker:
    def __init__(
        self,
        command: Sequence[str] = CHECK_COMMAND,
        *,
        is_enabled: bool = True,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Engines that are not this build's may read other files."""
        self._command = command
        self._is_enabled = is_enabled
        self._limit_s = limit_s
        self._clock = clock

    def check(
        self,
        spec: LoadSpec,
        weights: Sequence[Path],
        free_bytes: int,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """``free_bytes``: for choosing a quant. Blocks for ``limit_s`` at most. Raises
        ``LoadRefusedError`` where the engine would refuse the files."""
        result, problem = self._run(_order(spec, weights, free_bytes), is_cancelled)
        if result is not None and result.failure is not None:
            raise LoadRefusedError(result.failure)
        if problem and not is_cancelled():
            log.warning(
                "the files of %s are not checked before models leave for it: the check %s",
                spec.model,
                problem,
            )

    def costs(
        self,
        spec: LoadSpec,
        weights: Sequence[Path],
        free_bytes: int,
        is_cancelled: Callable[[], bool],
    ) -> PackedCosts | None:
        """Blocks for ``limit_s`` at most. ``None``: the files are missing, or do not show the
        costs."""
        order = _order(spec, weights, free_bytes, weighs=True)
        result, problem = self._run(order, is_cancelled)
        if result is not None and result.costs is not None:
            return result.costs
        if result is not None and result.failure is not None:
            problem = result.failure.message
        if problem:
            log.info("what the layers of %s take is unknown: %s", spec.model, problem)
        return None

    def _run(
        self, order: FileCheckOrder, is_cancelled: Callable[[], bool]
    ) -> tuple[FileCheckResult | None, str]:
        if not self._is_enabled or not (order.weights or order.spec.source.startswith("path:")):
            return None, ""
        deadline_s = self._clock() + self._limit_s
        results: list[FileCheckResult] = []

        def is_late() -> bool:
            return self._clock() > deadline_s

        try:
            code = run_order(
                self._command,
                order,
                lambda line: results.append(decode_result(line)),
                lambda: is_cancelled() or is_late(),
            )
        except OSError as error:
            return None, f"could not be started: {error}"
        if results:
            return results[-1], ""
        if is_late():
            return None, f"took longer than {self._limit_s:.0f} s"
        return None, f"ended with code {code}"


def _order(
    spec: LoadSpec, weights: Sequence[Path], free_bytes: int, *, weighs: bool = False
) -> FileCheckOrder:
    return FileCheckOrder(
        spec=spec,
        weights=[str(path) for path in weights],
        free_memory_bytes=max(0, free_bytes),
        weighs=weighs,
    )


FETCH_COMMAND = (sys.executable, "-m", "inference.loading.sources.fetch")


class Fetcher:
    def __init__(
        self,
        cache_dir: Path,
        free_memory_bytes: Callable[[], int],
        *,
        stall_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``free_memory_bytes``: for choosing a quant. ``stall_limit_s``: of a download; ``None``:
        no limit."""
        self.cache_dir = cache_dir
        self._stall_limit_s = stall_limit_s
        self._clock = clock
        self._free_memory_bytes = free_memory_bytes

    def fetch(
        self, spec: LoadSpec, report: OnProgress, is_cancelled: Callable[[], bool]
    ) -> Fetched | None:
        """Also downloads the draft model. ``None``: cancelled, or the source is not downloaded.
        Raises ``LoadRefusedError``; the new files of a load that can never succeed are deleted
        then."""
        own = self._fetch(spec, report, is_cancelled)
        drafting = draft_spec(spec)
        if drafting is None or is_cancelled():
            return own
        try:
            draft = self._fetch(drafting, report, is_cancelled)
        except LoadRefusedError as refused:
            if own is not None and refused.failure.is_permanent:
                self.remove(own.new_files)
            raise
        return own if draft is None else draft if own is None else _together(own, draft)

    def _fetch(
        self, spec: LoadSpec, report: OnProgress, is_cancelled: Callable[[], bool]
    ) -> Fetched | None:
        if not is_downloaded(spec.source):
            return None
        free_bytes = self._free_memory_bytes()
        try:
            if is_on_disk(spec, self.cache_dir):
                weights = fetch_files(spec, self.cache_dir, free_bytes, lambda _: None).all_weights
                return Fetched(
                    weights=[str(path) for path in weights],
                    weight_bytes=sum(path.stat().st_size for path in weights),
                )
        except LoadError as error:
            raise LoadRefusedError(error.failure) from None
        return self._download(spec, free_bytes, report, is_cancelled)

    def _download(
        self,
        spec: LoadSpec,
        free_bytes: int,
        report: OnProgress,
        is_cancelled: Callable[[], bool],
    ) -> Fetched | None:
        order = FetchOrder(spec=spec, cache_dir=str(self.cache_dir), free_memory_bytes=free_bytes)
        ends: list[Fetched | FetchFailed] = []
        stalls: list[LoadFailure] = []
        watch = LoadWatch()
        watch.progressed(LoadProgress(stage=LoadStage.DOWNLOADING, detail=spec.source))

        def on_line(line: bytes) -> None:
            message = decode_message(line)
            if isinstance(message, Fetching):
                watch.progressed(message.progress)
                report(message.progress)
            else:
                ends.append(message)

        def is_over() -> bool:
            stalled_s = watch.check(self._clock())
            if self._stall_limit_s is not None and stalled_s > self._stall_limit_s:
                stalls.append(watch.failure(stalled_s))
                log.error("%s; the download is ended", stalls[-1].message)
            return bool(stalls) or is_cancelled()

        code = run_order(FETCH_COMMAND, order, on_line, is_over)
        if is_cancelled():
            return None
        if stalls:
            raise LoadRefusedError(stalls[0])
        if not ends:
            message = f"the download of {spec.source} ended with code {code}"
            raise LoadRefusedError(LoadFailure(code="download_failed", message=message))
        end = ends[-1]
        if isinstance(end, Fetched):
            return end
        if end.failure.is_permanent or end.failure.code == "disk_full":
            self.remove(end.new_files)
        raise LoadRefusedError(end.failure)

    def remove(self, new_files: dict[str, list[str]], used: Collection[Path] = ()) -> None:
        """A package or revision stays whole where a file of ``used`` lies in it."""
        for key, names in new_files.items():
            source, _, revision = key.rpartition("@")
            directory = cached_directory(self.cache_dir, source, revision)
            if any(path.is_relative_to(directory) for path in used):
                continue
            try:
                freed = delete_cached(self.cache_dir, source, revision, names)
            except (LoadError, OSError) as error:
                log.warning("%s could not be removed: %s", key, error)
            else:
                log.info("removed what was downloaded of %s: %d bytes", key, freed)


def _together(own: Fetched, draft: Fetched) -> Fetched:
    new_files = dict(own.new_files)
    for key, names in draft.new_files.items():
        new_files[key] = [*new_files.get(key, []), *names]
    return Fetched(
        weights=[*own.weights, *draft.weights],
        weight_bytes=own.weight_bytes + draft.weight_bytes,
        new_files=new_files,
    )
