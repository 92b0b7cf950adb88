"""Fetches a model's files to a neuron, cancels that, and deletes files.

download_start ─▶ PENDING ─▶ the neuron's report moves it ─▶ SUCCEEDED | FAILED | CANCELLED
download_cancel ─────────────▶ the neuron ends it; its files stay, and the next pull resumes it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.catalogue import SETTINGS, check_source, whole_source
from fleet.catalogue.targets import upstream_of
from fleet.errors import (
    CachedModelInUseError,
    CachedModelNotFoundError,
    CatalogueValueError,
    JobCannotBeCancelledError,
    PlacementRefusedError,
    ServedByUpstreamError,
)
from fleet.lifecycles import DownloadKind, LoadJobStatus
from fleet.live import reading as live
from fleet.live.reading import read_cache_reports
from fleet.live.snapshot import FleetSnapshot
from fleet.models import Alias, Download
from fleet.selectors import is_of_source
from fleet.services.job_steps import (
    NO_REASON,
    job_abandoned,
    job_end,
    job_report,
    job_send,
    jobs_fail,
)
from fleet.services.neurons import reporting_neuron
from inference.loading.sources.hub_sources import is_downloaded
from inference.protocol.keys import TASK_CANCEL_PULL, TASK_DELETE_CACHED, TASK_PULL_MODEL
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.protocol.neuron_tasks import (
    CACHE_REPORT_EXPIRY_S,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    DeleteSpec,
    PullSpec,
)
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

AUDITED_LENGTH = 200
SILENCE_TIMEOUT = timedelta(seconds=2 * CACHE_REPORT_EXPIRY_S)
ENDED = {
    CacheJobStatus.SUCCEEDED: LoadJobStatus.SUCCEEDED,
    CacheJobStatus.FAILED: LoadJobStatus.FAILED,
    CacheJobStatus.CANCELLED: LoadJobStatus.CANCELLED,
}
LOST = LoadFailure(
    code="download_lost", message="The neuron was started anew; the next pull resumes it"
)


def download_start(
    *,
    actor: Actor,
    source: str,
    file: str | None = None,
    revision: str | None = None,
    sha256: str | None = None,
    neuron_name: str | None = None,
    pinned_on: Sequence[str] = (),
) -> Download:
    """The active pull of these files on that neuron, new or existing. With no neuron named: one of
    ``pinned_on``, or any, by cached files and free space. Raises ``CatalogueValueError``,
    ``UnknownNeuronError``, ``NeuronAwayError``, ``PlacementRefusedError``,
    ``SnapshotUnavailableError``."""
    source = whole_source(source)
    check_source(source)
    if not is_downloaded(source):
        raise CatalogueValueError(
            "source", f"{source!r} is not downloaded: it is on a neuron's disk or nowhere"
        )
    files = {"source": source, "file": file or "", "revision": revision or ""}
    for name, text in files.items():
        if problem := SETTINGS[name].kind.problem(text):
            raise CatalogueValueError(name, problem)
    snapshot = live.read_snapshot_sync(live.redis_client())
    if neuron_name is not None:
        reporting_neuron(neuron_name, snapshot)
    neuron = selectors.neuron_known(neuron_name or _chosen_neuron(source, snapshot, pinned_on))
    while True:
        pulls = selectors.downloads_active().filter(kind=DownloadKind.PULL, neuron=neuron, **files)
        if (active := pulls.first()) is not None:
            return active
        download = Download(neuron=neuron, **files, sha256=sha256 or "")
        try:
            return _create(actor, download, _send_pull)
        except IntegrityError:
            logger.info("another pull of %s came first, or its neuron is gone", source)
            neuron = selectors.neuron_known(neuron.name)


def model_download_start(
    *, actor: Actor, model_name: str, neuron_name: str | None = None
) -> Download:
    """Raises ``UnknownModelError``, ``ServedByUpstreamError``, and as ``download_start``."""
    alias = Alias.objects.select_related("model").filter(name=model_name).first()
    model = selectors.model_known(model_name) if alias is None else alias.model
    entry = model.settings()
    if upstream_of(entry.source) is not None:
        raise ServedByUpstreamError(model.name)
    return download_start(
        actor=actor,
        source=entry.source,
        file=entry.file,
        revision=entry.revision,
        sha256=entry.sha256,
        neuron_name=neuron_name,
        pinned_on=entry.pinned_on,
    )


def download_delete_start(
    *,
    actor: Actor,
    neuron_name: str,
    source: str,
    revision: str = "",
    files: Sequence[str] = (),
) -> Download:
    """Files are named as in its report. Raises ``UnknownNeuronError``,
    ``CachedModelNotFoundError``, ``CachedModelInUseError``, ``SnapshotUnavailableError``."""
    neuron = selectors.neuron_known(neuron_name)
    report = read_cache_reports(live.redis_client(), [neuron.name]).get(neuron.name)
    cached = report.cached if report is not None else []
    found = next((one for one in cached if (one.source, one.revision) == (source, revision)), None)
    if found is None:
        what = f"{source} {revision}".strip()
        raise CachedModelNotFoundError(f"{neuron_name} has no {what} in its cache, or is away")
    if unknown := set(files) - {file.name for file in found.files}:
        raise CachedModelNotFoundError(f"{source} has no file {min(unknown)} there")
    if found.used_by and not files:
        users = ", ".join(found.used_by)
        raise CachedModelInUseError(f"{users} is loaded from it: unload that first")
    download = Download(
        kind=DownloadKind.DELETE,
        neuron=neuron,
        source=source,
        revision=revision,
        files=list(files),
    )
    num_bytes = found.num_bytes + found.partial_bytes
    if files:
        num_bytes = sum(file.num_bytes for file in found.files if file.name in files)
    return _create(actor, download, _send_delete, num_bytes=num_bytes)


def download_cancel(*, actor: Actor, download: Download) -> Download:
    """The download ends when its neuron has stopped it. Raises ``JobCannotBeCancelledError``;
    ``BrokerUnavailableError``, and then nothing has changed."""
    if not download.is_active:
        raise JobCannotBeCancelledError(f"The download has ended: it {download.status}")
    if download.kind == DownloadKind.DELETE:
        raise JobCannotBeCancelledError("A deletion cannot be called back")
    wanted_at = timezone.now()
    with transaction.atomic():
        Download.objects.filter(pk=download.pk).update(cancel_wanted_at=wanted_at)
        audit_entry_create(
            actor=actor,
            action="download.cancel",
            object_id=download.source[:AUDITED_LENGTH],
            detail={"neuron": download.neuron.name, "download": str(download.pk)},
        )
        neuron_client.send(TASK_CANCEL_PULL, download.neuron.name, str(download.pk))
    download.cancel_wanted_at = wanted_at
    return download


def _chosen_neuron(source: str, snapshot: FleetSnapshot, pinned_on: Sequence[str]) -> str:
    reports = read_cache_reports(live.redis_client(), [neuron.name for neuron in snapshot.neurons])
    name = download_neuron(source, snapshot, reports, pinned_on)
    if name is None:
        where = f"none of {', '.join(pinned_on)}" if pinned_on else "no neuron"
        raise PlacementRefusedError(f"There is {where} that takes downloads now")
    return name


def download_neuron(
    source: str,
    snapshot: FleetSnapshot,
    reports: Mapping[str, CacheReport],
    wanted: Collection[str] = (),
) -> str | None:
    """``wanted``: empty: any neuron. ``None``: none accepts downloads now."""

    def worth(name: str) -> tuple[bool, int]:
        report = reports.get(name)
        if report is None:
            return False, -1
        return any(is_of_source(one, source) for one in report.cached), report.disk_free_bytes

    names = [neuron.name for neuron in snapshot.neurons if neuron.may_load]
    able = [name for name in names if not wanted or name in wanted]
    return max(able, key=worth, default=None)


def _create(
    actor: Actor, download: Download, send: Callable[[Download], None], **detail: Any
) -> Download:
    """Raises ``IntegrityError`` where the same pull was started meanwhile."""
    download.requested_by = actor[:150]
    detail |= {"neuron": download.neuron.name, "download": str(download.pk)}
    for name in ("file", "revision", "files"):
        if value := getattr(download, name):
            detail[name] = value
    with transaction.atomic():
        download.save(force_insert=True)
        audit_entry_create(
            actor=actor,
            action=f"download.{download.kind}",
            object_id=download.source[:AUDITED_LENGTH],
            detail=detail,
        )
        job_send(job=download, send=send)
    return download


def _send_pull(download: Download) -> None:
    spec = PullSpec(
        job_id=str(download.pk),
        source=download.source,
        file=download.file or None,
        revision=download.revision or None,
        sha256=download.sha256 or None,
    )
    neuron_client.send(TASK_PULL_MODEL, download.neuron.name, spec)


def _send_delete(download: Download) -> None:
    spec = DeleteSpec(
        job_id=str(download.pk),
        source=download.source,
        revision=download.revision,
        files=list(download.files),
    )
    neuron_client.send(TASK_DELETE_CACHED, download.neuron.name, spec)


def downloads_record(*, reports: Mapping[str, CacheReport]) -> None:
    now = timezone.now()
    for download in selectors.downloads_active().filter(neuron__name__in=reports):
        jobs = {job.job_id: job for job in reports[download.neuron.name].jobs}
        _advance(download, jobs.get(str(download.pk)), now)


def downloads_expire(*, now: datetime | None = None) -> int:
    """Fails downloads that no neuron works on. Returns their number."""
    now = now or timezone.now()
    return jobs_fail(
        (
            one,
            job_abandoned(one, one.neuron, "download", now=now, silence=SILENCE_TIMEOUT, lost=LOST),
        )
        for one in selectors.downloads_active()
    )


def _advance(download: Download, state: CacheJobState | None, now: datetime) -> None:
    if state is None:
        if download.reported_at is not None:  # reports from before it was requested do not have it
            job_end(job=download, status=LoadJobStatus.FAILED, failure=LOST)
        return
    values = _progress_values(download, state.progress)
    if state.status in ENDED:
        failed = state.status is CacheJobStatus.FAILED
        failure = (state.failure or NO_REASON) if failed else None
        if state.status is CacheJobStatus.SUCCEEDED:
            values["bytes_done"] = values.get("bytes_total", download.bytes_total)
        job_end(job=download, status=ENDED[state.status], failure=failure, values=values)
    else:
        is_running = state.status is CacheJobStatus.RUNNING
        job_report(job=download, values=values, now=now, is_running=is_running)


def _progress_values(download: Download, progress: LoadProgress | None) -> dict[str, Any]:
    if progress is None or progress.unit != "bytes" or progress.stage is LoadStage.DONE:
        return {}
    values = {
        "bytes_done": progress.done,
        "bytes_total": progress.total,
        "detail": progress.detail,
    }
    return {name: value for name, value in values.items() if getattr(download, name) != value}
