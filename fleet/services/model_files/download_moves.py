"""Moving downloads along their lifecycle, by what their neurons report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.lifecycles import DownloadKind, LoadJobStatus, NeuronStatus
from fleet.models import Download
from fleet.services.jobs.steps import (
    NOT_SENT,
    failure_values,
    job_claim,
    job_report,
    neuron_away,
)
from inference.protocol.downloads import (
    CACHE_REPORT_EXPIRY_S,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
)
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage

logger = logging.getLogger(__name__)

PICKUP_TIMEOUT = timedelta(seconds=neuron_client.DOWNLOAD_EXPIRES_S + 10)
SILENCE_TIMEOUT = timedelta(seconds=2 * CACHE_REPORT_EXPIRY_S)
AWAY_TIMEOUT = timedelta(seconds=15)
ENDED = {
    CacheJobStatus.SUCCEEDED: LoadJobStatus.SUCCEEDED,
    CacheJobStatus.FAILED: LoadJobStatus.FAILED,
    CacheJobStatus.CANCELLED: LoadJobStatus.CANCELLED,
}
LOST = LoadFailure(
    code="download_lost", message="The neuron was started anew; the next pull resumes it"
)


def downloads_record(*, reports: Mapping[str, CacheReport]) -> None:
    """``reports``: neuron -> its latest report."""
    now = timezone.now()
    for download in selectors.downloads_active().filter(neuron__name__in=reports):
        jobs = {job.job_id: job for job in reports[download.neuron.name].jobs}
        _advance(download, jobs.get(str(download.pk)), now)


def downloads_expire(*, now: datetime | None = None) -> int:
    """Fail the active downloads that no neuron works on. Returns their number."""
    now = now or timezone.now()
    failures = ((download, _abandoned(download, now)) for download in selectors.downloads_active())
    return sum(
        _end(download, LoadJobStatus.FAILED, failure)
        for download, failure in failures
        if failure is not None
    )


def _abandoned(download: Download, now: datetime) -> LoadFailure | None:
    """The failure of an active download that no neuron works on; ``None``: one does."""
    neuron, reported_at = download.neuron, download.reported_at
    if neuron.status == NeuronStatus.AWAY and neuron.status_since < now - AWAY_TIMEOUT:
        return neuron_away(neuron, download.created_at, "download")
    if reported_at is not None:
        return LOST if reported_at < now - SILENCE_TIMEOUT else None
    if download.created_at < now - PICKUP_TIMEOUT:
        return LoadFailure(code="not_picked_up", message="The neuron did not take up the download")
    return None


def download_not_sent(*, download: Download) -> None:
    """The broker did not take the message: nothing has happened on the neuron."""
    _end(download, LoadJobStatus.FAILED, NOT_SENT)


def _advance(download: Download, state: CacheJobState | None, now: datetime) -> None:
    if state is None:
        if download.reported_at is not None:  # a report from before it was asked for has it not
            _end(download, LoadJobStatus.FAILED, LOST)
        return
    values = _progress_values(download, state.progress)
    if state.status in ENDED:
        failure = None
        if state.status is CacheJobStatus.FAILED:
            unknown = LoadFailure(code="unknown", message="No reason was given")
            failure = state.failure or unknown
        if state.status is CacheJobStatus.SUCCEEDED:
            values["bytes_done"] = values.get("bytes_total", download.bytes_total)
        _end(download, ENDED[state.status], failure, values)
    else:
        is_running = state.status is CacheJobStatus.RUNNING
        job_report(job=download, values=values, now=now, is_running=is_running)


def _progress_values(download: Download, progress: LoadProgress | None) -> dict[str, Any]:
    """The columns that changed."""
    if progress is None or progress.unit != "bytes" or progress.stage is LoadStage.DONE:
        return {}
    values = {
        "bytes_done": progress.done,
        "bytes_total": progress.total,
        "detail": progress.detail,
    }
    return {name: value for name, value in values.items() if getattr(download, name) != value}


def _end(
    download: Download,
    status: LoadJobStatus,
    failure: LoadFailure | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Whether this call ended it. A cancelled download has not failed."""
    if status == LoadJobStatus.FAILED and download.cancel_wanted_at is not None:
        status, failure = LoadJobStatus.CANCELLED, None
    changes = {**(values or {}), "finished_at": timezone.now(), **failure_values(failure)}
    ended = job_claim(job=download, status=status, values=changes)
    if ended:
        what = "deletion" if download.kind == DownloadKind.DELETE else "download"
        logger.info("%s %s (%s): %s", what, download.pk, download, status)
    return ended
