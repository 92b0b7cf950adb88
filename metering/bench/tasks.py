"""The control's tick for sweeps from the page."""

from __future__ import annotations

import threading

from django.db import connections
from django.utils import timezone

from helexa_site.celery import TASK_BENCH_JOBS, app
from metering.bench import jobs
from metering.bench.models import BenchJob

_threads: dict[int, threading.Thread] = {}
"""Jobs that this process has run, and their threads."""


@app.task(name=TASK_BENCH_JOBS)  # type: ignore[untyped-decorator]
def bench_jobs() -> None:
    """A job takes hours: it has a thread of its own, which ends with the process."""
    if not BenchJob.objects.filter(open_slot=1).exists():
        return
    for job_id, thread in _threads.items():
        if thread.is_alive():
            jobs.bench_job_beat(job_id=job_id)
    jobs.bench_jobs_expire(now=timezone.now())
    if (job := jobs.bench_job_claim()) is not None:
        thread = threading.Thread(target=_run, args=(job,), name=str(job), daemon=True)
        _threads[job.pk] = thread
        thread.start()


def _run(job: BenchJob) -> None:
    try:
        jobs.bench_job_run(job)
    finally:
        connections.close_all()
