"""Runs a claimed job: the same sweep as ``bench once``, with its progress in the job's row.

the job's thread   sweep ─▶ line, counts ─▶ row
the beat's thread  every few seconds: row ─▶ shall it continue?
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from metering.bench.errors import BenchError
from metering.bench.jobs.services import (
    Status,
    bench_job_beat,
    bench_job_end,
    bench_job_progress,
)
from metering.bench.management.choosing import settings_chosen, sweep_of, sweep_run
from metering.bench.models import BenchJob
from metering.bench.sweep import Kept, SweepResult

logger = logging.getLogger(__name__)

BEAT_EVERY_S = 3.0


class _CancelledError(Exception):
    """No ``BenchError``: the sweep does not continue with the next target."""


class JobRun:
    """``run`` blocks until the job has ended, whatever happens to it."""

    def __init__(self, job: BenchJob, *, beat_every_s: float = BEAT_EVERY_S) -> None:
        self._job = job
        self._beat_every_s = beat_every_s
        self._is_over = threading.Event()
        self._is_cancelled = threading.Event()

    def cancel(self) -> None:
        """Ends it after the sample that it is taking. Any thread may call it."""
        self._is_cancelled.set()

    def run_in_thread(self) -> None:
        """What a thread of its own runs: its connections end with it."""
        try:
            self.run()
        finally:
            connections.close_all()

    def run(self) -> None:
        beats = threading.Thread(target=self._beat, name="bench job beat", daemon=True)
        beats.start()
        try:
            status, error = self._outcome()
            bench_job_end(job_id=self._job.pk, status=status, error=error)
        finally:
            self._is_over.set()
            beats.join()

    def _outcome(self) -> tuple[str, str]:
        """The status that it ends with, and why where that needs a reason."""
        try:
            result = self._sweep()
        except _CancelledError:
            return Status.CANCELLED, ""
        except (BenchError, CommandError) as error:
            return Status.FAILED, str(error)
        except Exception:
            logger.exception("%s broke", self._job)
            return Status.FAILED, "The sweep broke; the control's log has the traceback."
        finally:
            self._save()
        if result.num_ok == 0 and (result.num_failed or result.left_out):
            return Status.FAILED, "Nothing was measured: the lines name the reasons."
        return Status.DONE, ""

    def _sweep(self) -> SweepResult:
        """Raises ``BenchError``."""
        options = options_of(self._job)
        sweep = sweep_of(settings_chosen(options), self._report)
        counted = _CountingStore(sweep.store, self._count)
        sweep = replace(
            sweep, store=counted, expect=self._expect, ensure_wanted=self._ensure_wanted
        )
        result = sweep_run(options, sweep, self._report)
        self._job.num_cells_done = result.num_cells_done
        return result

    def _report(self, line: str) -> None:
        self._job.lines.append(line)
        self._save()

    def _save(self) -> None:
        """The sweep continues where the database does not take its progress now."""
        try:
            bench_job_progress(job=self._job)
        except DatabaseError as error:
            logger.warning("the progress of %s is not saved: %s", self._job, error)

    def _expect(self, num_samples: int) -> None:
        self._job.num_planned += num_samples
        self._report(f"{num_samples} samples to take")

    def _count(self, kept: Kept) -> None:
        if kept.sample is None:
            self._job.num_failed += 1
        else:
            self._job.num_ok += 1
        self._save()

    def _ensure_wanted(self) -> None:
        """Raises ``_CancelledError``."""
        if self._is_cancelled.is_set():
            raise _CancelledError

    def _beat(self) -> None:
        try:
            while not self._is_over.wait(self._beat_every_s):
                try:
                    if not bench_job_beat(job_id=self._job.pk):
                        self.cancel()
                except DatabaseError as error:
                    logger.warning("%s does not beat: %s", self._job, error)
                    connections.close_all()
        finally:
            connections.close_all()


class _CountingStore:
    """The database, and a count of what goes into it."""

    def __init__(self, store: Any, count: Callable[[Kept], None]) -> None:
        self._store = store
        self._count = count
        self.num_done = store.num_done

    def keep(self, kept: Kept) -> None:
        self._store.keep(kept)
        self._count(kept)


def options_of(job: BenchJob) -> dict[str, Any]:
    """Returns the options that ``manage.py bench once`` would have."""
    unset = dict.fromkeys(
        ("config", "endpoint", "kind", "name", "build", "url", "key", "max_tokens", "pause")
    )
    return {
        **unset,
        "timeout": None,
        "no_fleet": False,
        "target": [job.target] if job.target else None,
        "model": [job.model] if job.model else None,
        "scenario": list(job.scenarios) or None,
        "samples": job.samples,
        "beside_load": job.is_beside_load,
    }
