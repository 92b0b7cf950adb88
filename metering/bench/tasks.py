"""The control's tick for sweeps from the page."""

from __future__ import annotations

import threading

from django.db import connections

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
    own_ids = [job_id for job_id, thread in _threads.items() if thread.is_alive()]
    if (job := jobs.bench_job_claim(own_ids=own_ids)) is not None:
        _threads[job.pk] = threading.Thread(target=_run, args=(job,), name=str(job), daemon=True)
        _threads[job.pk].start()


def _run(job: BenchJob) -> None:
    try:
        jobs.bench_job_run(job)
    finally:
        connections.close_all()
