"""Pulls and deletions as jobs of their own, and the report of cached models.

    pull ─▶ QUEUED ─▶ RUNNING ─▶ SUCCEEDED | FAILED | CANCELLED       one at a time, in a thread
    delete ─▶ SUCCEEDED | FAILED                                      not while a model is of it

A pull that was cancelled or broken off is resumed by the next one of the same source. The report is
written to Redis when something changed, and every few seconds.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import redis

from inference.loading.sources.cached import cached_directory, delete_cached, list_cached
from inference.loading.sources.disk import free_disk_bytes
from inference.loading.sources.hub_sources import hub_cache_dir, is_downloaded
from inference.loading.sources.sources import parse_source
from inference.logs.throttled import ThrottledLog
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.files import Fetcher
from inference.protocol.downloads import (
    CACHE_REPORT_EXPIRY_S,
    CACHE_REPORT_INTERVAL_S,
    ENDED_JOB_KEPT_S,
    CachedModel,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    DeleteSpec,
    PullSpec,
    encode_cache_report,
)
from inference.protocol.keys import downloads_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_progress import LOADED, LoadFailure, LoadProgress
from inference.redis_connections import MAX_VALUE_BYTES
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


_warnings = ThrottledLog(log, logging.WARNING, interval_s=3600.0)
"""The same words once an hour: a report is written every few seconds."""

STATUS_ENDED = (CacheJobStatus.SUCCEEDED, CacheJobStatus.FAILED, CacheJobStatus.CANCELLED)
SHORTEST_INTERVAL_S = 0.5
"""Between two reports, however much happens."""


class Downloads:
    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        fetcher: Fetcher,
        used_paths: Callable[[], dict[str, list[Path]]],
    ) -> None:
        """``used_paths``: model -> the weight files of its replica here, a load under way's too."""
        self._client = client
        self._neuron = neuron
        self._fetcher = fetcher
        self._used_paths = used_paths
        self._lock = threading.Lock()
        self._jobs: dict[str, CacheJobState] = {}
        self._queue: deque[PullSpec] = deque()
        self._cancelled: set[str] = set()
        self._changed = threading.Event()
        self._work = threading.Event()
        self._is_stopping = False
        self._threads = [
            SupervisedThread(self._report_for_ever, name="cache-report"),
            SupervisedThread(self._pull_for_ever, name="pulls"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._work.set()
        self._changed.set()

    def pull(self, spec: PullSpec) -> None:
        """Queued. The same job again changes nothing."""
        with self._lock:
            if spec.job_id in self._jobs:
                return
            self._jobs[spec.job_id] = CacheJobState(
                job_id=spec.job_id,
                kind="pull",
                source=spec.source,
                file=spec.file,
                revision=spec.revision,
                status=CacheJobStatus.QUEUED,
                since_unix_s=time.time(),
            )
            self._queue.append(spec)
        self._work.set()
        self._changed.set()

    def cancel(self, job_id: str) -> None:
        """Cancel a pull; downloaded bytes stay. Does nothing for an unknown or ended job."""
        with self._lock:
            self._cancelled.add(job_id)
            waits = [spec for spec in self._queue if spec.job_id == job_id]
            for spec in waits:
                self._queue.remove(spec)
        if waits:
            self._move(job_id, CacheJobStatus.CANCELLED)

    def delete(self, spec: DeleteSpec) -> None:
        with self._lock:
            if spec.job_id in self._jobs:
                return
            self._jobs[spec.job_id] = CacheJobState(
                job_id=spec.job_id,
                kind="delete",
                source=spec.source,
                revision=spec.revision,
                status=CacheJobStatus.RUNNING,
                since_unix_s=time.time(),
            )
        try:
            self._delete(spec)
        except LoadRefusedError as refused:
            self._move(spec.job_id, CacheJobStatus.FAILED, failure=refused.failure)
        except (LoadError, OSError) as error:
            code = error.code if isinstance(error, LoadError) else "engine_error"
            failure = LoadFailure(code=code, message=str(error))
            self._move(spec.job_id, CacheJobStatus.FAILED, failure=failure)
        else:
            self._move(spec.job_id, CacheJobStatus.SUCCEEDED)

    def report(self) -> CacheReport:
        cache_dir = self._fetcher.cache_dir
        used = self._used_paths()
        with self._lock:
            self._forget_old()
            jobs = list(self._jobs.values())
        directory = hub_cache_dir(cache_dir)
        while not directory.exists():
            directory = directory.parent
        return CacheReport(
            neuron=self._neuron,
            time_unix_s=time.time(),
            disk_total_bytes=shutil.disk_usage(directory).total,
            disk_free_bytes=free_disk_bytes(directory),
            cached=[
                msgspec.structs.replace(model, used_by=_users(cache_dir, model, used))
                for model in list_cached(cache_dir)
            ],
            jobs=jobs,
        )

    def _delete(self, spec: DeleteSpec) -> None:
        cache_dir = self._fetcher.cache_dir
        used = self._used_paths()
        for model in list_cached(cache_dir):
            if (model.source, model.revision) != (spec.source, spec.revision):
                continue
            if users := _users(cache_dir, model, used, spec.files):
                message = f"{', '.join(users)} is loaded from it: unload that first"
                raise LoadRefusedError(LoadFailure(code="in_use", message=message))
        freed = delete_cached(cache_dir, spec.source, spec.revision, spec.files)
        log.info("deleted %s %s: %d bytes", spec.source, spec.revision, freed)

    def _move(
        self,
        job_id: str,
        status: CacheJobStatus,
        *,
        failure: LoadFailure | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        with self._lock:
            job = self._jobs[job_id]
            self._jobs[job_id] = msgspec.structs.replace(
                job,
                status=status,
                since_unix_s=job.since_unix_s if status is job.status else time.time(),
                failure=failure,
                progress=progress or job.progress,
            )
        self._changed.set()

    def _forget_old(self) -> None:
        oldest = time.time() - ENDED_JOB_KEPT_S
        for job in list(self._jobs.values()):
            if job.status in STATUS_ENDED and job.since_unix_s < oldest:
                del self._jobs[job.job_id]
                self._cancelled.discard(job.job_id)

    # The threads.

    def _pull_for_ever(self) -> None:
        while not self._is_stopping:
            self._work.wait()
            self._work.clear()
            while not self._is_stopping and (spec := self._next()) is not None:
                try:
                    self._pull(spec)
                except BaseException:  # its job has ended, whatever a library raised
                    log.exception("pull %s broke", spec.job_id)
                    failure = LoadFailure(code="download_failed", message="see the neuron's log")
                    self._move(spec.job_id, CacheJobStatus.FAILED, failure=failure)

    def _next(self) -> PullSpec | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _pull(self, spec: PullSpec) -> None:
        job_id = spec.job_id
        self._move(job_id, CacheJobStatus.RUNNING)
        if not is_downloaded(spec.source):
            self._move(job_id, CacheJobStatus.FAILED, failure=_not_downloaded(spec.source))
            return

        def report(progress: LoadProgress) -> None:
            self._move(job_id, CacheJobStatus.RUNNING, progress=progress)

        try:
            fetched = self._fetcher.fetch(_as_load(spec), report, lambda: self._is_over(job_id))
        except LoadRefusedError as refused:
            self._move(job_id, CacheJobStatus.FAILED, failure=refused.failure)
            return
        if fetched is None:
            self._move(job_id, CacheJobStatus.CANCELLED)
        else:
            self._move(job_id, CacheJobStatus.SUCCEEDED, progress=LOADED)

    def _is_over(self, job_id: str) -> bool:
        return self._is_stopping or job_id in self._cancelled

    def _report_for_ever(self) -> None:
        while not self._is_stopping:
            try:
                whole = self.report()
                report = bounded_report(whole)
                self._client.set(
                    downloads_key(self._neuron),
                    encode_cache_report(report),
                    px=int(CACHE_REPORT_EXPIRY_S * 1000),
                )
                if report is not whole:
                    _warnings.log("cut", "the report of downloads has no file names: too many")
            except redis.ResponseError as error:
                _warnings.log("refused", f"Redis refuses the report of downloads: {error}")
            except redis.RedisError as error:
                log.debug("the report of downloads does not reach Redis: %s", error)
            except Exception:
                log.exception("the report of downloads broke")
            time.sleep(SHORTEST_INTERVAL_S)
            self._changed.wait(CACHE_REPORT_INTERVAL_S)
            self._changed.clear()


def _as_load(spec: PullSpec) -> LoadSpec:
    return LoadSpec(
        job_id=spec.job_id,
        model="",
        source=spec.source,
        file=spec.file,
        revision=spec.revision,
        sha256=spec.sha256,
    )


def _users(
    cache_dir: Path, model: CachedModel, used: dict[str, list[Path]], files: list[str] | None = None
) -> list[str]:
    """Models whose weights lie in it, or in those ``files`` of it."""
    directory = cached_directory(cache_dir, model.source, model.revision)
    return sorted(
        name
        for name, paths in used.items()
        if any(
            path.is_relative_to(directory)
            and (not files or path.relative_to(directory).as_posix() in files)
            for path in paths
        )
    )


def _not_downloaded(source: str) -> LoadFailure:
    try:
        parse_source(source)
    except LoadError as error:
        return error.failure
    message = f"{source} is not downloaded: it is on the neuron's disk or nowhere"
    return LoadFailure(code="bad_source", message=message)


def bounded_report(report: CacheReport, *, max_bytes: int = MAX_VALUE_BYTES) -> CacheReport:
    if len(encode_cache_report(report)) <= max_bytes:
        return report
    cached = [msgspec.structs.replace(model, files=[], missing=[]) for model in report.cached]
    return msgspec.structs.replace(report, cached=cached)
