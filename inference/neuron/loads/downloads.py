"""Pulls and deletions as jobs of their own, and the report of cached models.

    pull ─▶ QUEUED ─▶ RUNNING ─▶ SUCCEEDED | FAILED | CANCELLED       one at a time, in a thread
    delete ─▶ SUCCEEDED | FAILED                                      not while a model is of it

The next pull of the same source resumes one that was cancelled or broken off.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import redis

from inference.loading.sources import cached
from inference.loading.sources.disk import free_disk_bytes
from inference.loading.sources.hub_sources import hub_cache_dir, is_downloaded
from inference.loading.sources.sources import parse_source
from inference.logs import ThrottledLog
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.files import Fetcher
from inference.protocol import neuron_tasks as protocol
from inference.protocol.keys import downloads_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_report import LOADED, LoadFailure, LoadProgress
from inference.protocol.neuron_tasks import CacheJobState, CacheJobStatus, DeleteSpec, PullSpec
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


_warnings = ThrottledLog(log, logging.WARNING, interval_s=3600.0)

STATUS_ENDED = (CacheJobStatus.SUCCEEDED, CacheJobStatus.FAILED, CacheJobStatus.CANCELLED)
SHORTEST_INTERVAL_S = 0.5


class Downloads:
    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        fetcher: Fetcher,
        used_paths: Callable[[], dict[str, list[Path]]],
    ) -> None:
        self._client = client
        self._neuron = neuron
        self._fetcher = fetcher
        self._used_paths = used_paths
        self._lock = threading.Lock()
        """Guards the jobs and those that are cancelled."""
        self._jobs: dict[str, CacheJobState] = {}
        self._cancelled: set[str] = set()
        self._pulls: queue.SimpleQueue[PullSpec | None] = queue.SimpleQueue()
        self._changed = threading.Event()
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
        self._pulls.put(None)
        self._changed.set()

    def pull(self, spec: PullSpec) -> None:
        """Idempotent by job."""
        if self._is_new(spec, "pull"):
            self._pulls.put(spec)

    def cancel(self, job_id: str) -> None:
        """Downloaded bytes stay."""
        with self._lock:
            self._cancelled.add(job_id)
            job = self._jobs.get(job_id)
        if job is not None and job.status is CacheJobStatus.QUEUED:
            self._move(job_id, CacheJobStatus.CANCELLED)

    def delete(self, spec: DeleteSpec) -> None:
        if self._is_new(spec, "delete"):
            self._run(spec.job_id, lambda: self._delete(spec))

    def report(self) -> protocol.CacheReport:
        cache_dir = self._fetcher.cache_dir
        used = self._used_paths()
        with self._lock:
            self._forget_old()
            jobs = list(self._jobs.values())
        directory = hub_cache_dir(cache_dir)
        while not directory.exists():
            directory = directory.parent
        return protocol.CacheReport(
            neuron=self._neuron,
            time_unix_s=time.time(),
            disk_total_bytes=shutil.disk_usage(directory).total,
            disk_free_bytes=free_disk_bytes(directory),
            cached=[
                msgspec.structs.replace(model, used_by=_users(cache_dir, model, used))
                for model in cached.list_cached(cache_dir)
            ],
            jobs=jobs,
        )

    def _is_new(self, spec: PullSpec | DeleteSpec, kind: Literal["pull", "delete"]) -> bool:
        with self._lock:
            if spec.job_id in self._jobs:
                return False
            self._jobs[spec.job_id] = CacheJobState(
                job_id=spec.job_id,
                kind=kind,
                source=spec.source,
                file=spec.file if isinstance(spec, PullSpec) else None,
                revision=spec.revision,
                status=CacheJobStatus.QUEUED,
                since_unix_s=time.time(),
            )
        self._changed.set()
        return True

    def _run(self, job_id: str, work: Callable[[], CacheJobStatus]) -> None:
        self._move(job_id, CacheJobStatus.RUNNING)
        try:
            status = work()
        except (LoadRefusedError, LoadError) as error:
            self._move(job_id, CacheJobStatus.FAILED, failure=error.failure)
        except OSError as error:
            failure = LoadFailure(code="engine_error", message=str(error))
            self._move(job_id, CacheJobStatus.FAILED, failure=failure)
        except BaseException:
            log.exception("job %s broke", job_id)
            failure = LoadFailure(code="download_failed", message="see the neuron's log")
            self._move(job_id, CacheJobStatus.FAILED, failure=failure)
        else:
            progress = LOADED if status is CacheJobStatus.SUCCEEDED else None
            self._move(job_id, status, progress=progress)

    def _delete(self, spec: DeleteSpec) -> CacheJobStatus:
        cache_dir = self._fetcher.cache_dir
        used = self._used_paths()
        for model in cached.list_cached(cache_dir):
            if (model.source, model.revision) != (spec.source, spec.revision):
                continue
            if users := _users(cache_dir, model, used, spec.files):
                message = f"{', '.join(users)} is loaded from it: unload that first"
                raise LoadRefusedError(LoadFailure(code="in_use", message=message))
        freed = cached.delete_cached(cache_dir, spec.source, spec.revision, spec.files)
        log.info("deleted %s %s: %d bytes", spec.source, spec.revision, freed)
        return CacheJobStatus.SUCCEEDED

    def _pull(self, spec: PullSpec) -> CacheJobStatus:
        if not is_downloaded(spec.source):
            parse_source(spec.source)  # names what is wrong with it
            message = f"{spec.source} is not downloaded: it is on the neuron's disk or nowhere"
            raise LoadRefusedError(LoadFailure(code="bad_source", message=message))
        load = LoadSpec(
            job_id=spec.job_id,
            model="",
            source=spec.source,
            file=spec.file,
            revision=spec.revision,
            sha256=spec.sha256,
        )

        def report(progress: LoadProgress) -> None:
            self._move(spec.job_id, CacheJobStatus.RUNNING, progress=progress)

        def is_over() -> bool:
            return self._is_stopping or spec.job_id in self._cancelled

        fetched = self._fetcher.fetch(load, report, is_over)
        return CacheJobStatus.CANCELLED if fetched is None else CacheJobStatus.SUCCEEDED

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
        oldest = time.time() - protocol.ENDED_JOB_KEPT_S
        for job in list(self._jobs.values()):
            if job.status in STATUS_ENDED and job.since_unix_s < oldest:
                del self._jobs[job.job_id]
                self._cancelled.discard(job.job_id)

    def _pull_for_ever(self) -> None:
        while (spec := self._pulls.get()) is not None and not self._is_stopping:
            if spec.job_id not in self._cancelled:
                self._run(spec.job_id, partial(self._pull, spec))

    def _report_for_ever(self) -> None:
        while not self._is_stopping:
            try:
                self._client.set(
                    downloads_key(self._neuron),
                    protocol.encode_cache_report(self.report()),
                    px=int(protocol.CACHE_REPORT_EXPIRY_S * 1000),
                )
            except redis.ResponseError as error:
                _warnings.log("refused", f"Redis refuses the report of downloads: {error}")
            except redis.RedisError as error:
                log.debug("the report of downloads does not reach Redis: %s", error)
            except Exception:
                log.exception("the report of downloads broke")
            time.sleep(SHORTEST_INTERVAL_S)
            self._changed.wait(protocol.CACHE_REPORT_INTERVAL_S)
            self._changed.clear()


def _users(
    cache_dir: Path,
    model: protocol.CachedModel,
    used: dict[str, list[Path]],
    files: list[str] | None = None,
) -> list[str]:
    directory = cached.cached_directory(cache_dir, model.source, model.revision)
    return sorted(
        name
        for name, paths in used.items()
        if any(
            path.is_relative_to(directory)
            and (not files or path.relative_to(directory).as_posix() in files)
            for path in paths
        )
    )
