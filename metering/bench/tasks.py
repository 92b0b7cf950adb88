"""The control's tick for sweeps from the page."""

from __future__ import annotations

import threading

from django.utils import timezone

from helexa_site.celery import TASK_BENCH_JOBS, app
from metering.bench.jobs import JobRun, bench_job_claim, bench_job_is_open, bench_jobs_expire


@app.task(name=TASK_BENCH_JOBS)  # type: ignore[untyped-decorator]
def bench_jobs() -> None:
    """A job takes hours: it has a thread of its own, which ends with the process."""
    if not bench_job_is_open():
        return
    bench_jobs_expire(now=timezone.now())
    if (job := bench_job_claim()) is not None:
        threading.Thread(target=JobRun(job).run_in_thread, name=str(job), daemon=True).start()
