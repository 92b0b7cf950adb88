"""Moving load jobs and downloads: every move is claimed by one conditional UPDATE on the status it
starts from. A caller that changes no row has lost the claim and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from fleet.errors import BrokerUnavailableError
from fleet.lifecycles import LoadJobStatus
from fleet.models import Neuron
from fleet.models.job import Job
from inference.protocol.load_progress import LoadFailure

REPORTED_AT_EVERY = timedelta(seconds=5)
NOT_SENT = LoadFailure(
    code=BrokerUnavailableError.code,
    message="Redis did not take the task: nothing was sent to the neuron",
)


def neuron_away(neuron: Neuron, began_at: datetime, what: str) -> LoadFailure:
    """Why a job or download of a host that is away has failed."""
    was_away = neuron.status_since < began_at
    when = f"was away when the {what} began" if was_away else f"went away during the {what}"
    return LoadFailure(code="neuron_away", message=f"{neuron.name} {when}")


def job_claim(*, job: Job, status: LoadJobStatus, values: Mapping[str, Any]) -> bool:
    """Raises ``IllegalTransitionError``."""
    job.ensure_may_become(status)
    same = type(job)._default_manager.filter(pk=job.pk, status=job.status)
    claimed = same.update(status=status, **values)
    if claimed:
        for name, value in {"status": status, **values}.items():
            setattr(job, name, value)
    return claimed == 1


def job_report(
    *, job: Job, values: Mapping[str, Any], now: datetime, is_running: bool = True
) -> None:
    """Records that the job's neuron spoke of it: ``values`` are the columns that changed."""
    if is_running and job.status == LoadJobStatus.PENDING:
        values = {**values, "started_at": now, "reported_at": now}
        job_claim(job=job, status=LoadJobStatus.RUNNING, values=values)
    elif values or job.reported_at is None or now - job.reported_at >= REPORTED_AT_EVERY:
        same = type(job)._default_manager.filter(pk=job.pk, status=job.status)
        same.update(reported_at=now, **values)


def failure_values(failure: LoadFailure | None) -> dict[str, str]:
    if failure is None:
        return {}
    return {"failure_code": failure.code, "failure_message": failure.message}
