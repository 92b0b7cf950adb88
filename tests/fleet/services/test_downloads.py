"""Downloads to their end, with a neuron whose reports the tests write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis
from django.db import IntegrityError, transaction
from django.utils import timezone
from msgspec import structs

from fleet import errors, selectors, services, tasks
from fleet.lifecycles import LoadJobStatus
from fleet.live.desired_state import NO_DESIRED_STATES
from fleet.live.snapshot import build_snapshot
from fleet.models import CatalogueModel, Download, Neuron
from fleet.services import downloads
from fleet.services.downloads import download_neuron
from inference.gateway.database import pull_cancel, pull_look, pull_offer, pull_start
from inference.protocol.keys import downloads_key
from inference.protocol.load_report import LOADED, LoadFailure, LoadProgress, LoadStage
from inference.protocol.neuron_tasks import (
    CachedFile,
    CachedModel,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    encode_cache_report,
)
from inference.wire.errors import InvalidRequestError, ModelNotFoundError
from inference.wire.ollama.models import PullRequest
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.conftest import change, offer

pytestmark = pytest.mark.django_db(transaction=True)


SOURCE = "huggingface:Qwen/Qwen3-0.6B"
GB = 10**9
CACHED = CachedModel(
    source=SOURCE,
    revision="abc",
    files=[CachedFile(name="model.safetensors", num_bytes=5 * GB)],
    num_bytes=5 * GB,
)
WHEEL = structs.replace(CACHED, source="pypi:tiny-1.0", revision="", used_by=["tiny"])
REPORT = CacheReport(
    neuron="beast",
    time_unix_s=1e9,
    disk_total_bytes=100 * GB,
    disk_free_bytes=50 * GB,
    cached=[],
    jobs=[],
)


@pytest.fixture
def publish_report(redis_db: redis.Redis) -> Callable[..., None]:
    """The neuron reports its downloads and its cache."""

    def publish_report(**changes: Any) -> None:
        report = structs.replace(REPORT, **changes)
        redis_db.set(downloads_key("beast"), encode_cache_report(report))

    return publish_report


@pytest.fixture
def beast(beat) -> Neuron:
    beat()
    return Neuron.objects.get()


def start(**changes: Any) -> Download:
    values = {"actor": COMMAND, "source": SOURCE, "neuron_name": "beast"} | changes
    return services.download_start(**values)


def state(download: Download, status: str, **changes: Any) -> CacheJobState:
    values = {"job_id": str(download.pk), "kind": "pull", "source": download.source}
    return CacheJobState(**values, status=CacheJobStatus(status), since_unix_s=1e9, **changes)


def bytes_of(done: int, total: int) -> LoadProgress:
    return LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail="a.gguf")


@pytest.fixture
def reported(publish_report: Callable[..., None]) -> Callable[..., Download]:
    """The download, once a tick has read its neuron's report of it."""

    def reported(download: Download, status: str, **changes: Any) -> Download:
        publish_report(jobs=[state(download, status, **changes)])
        tasks.tick()
        download.refresh_from_db()
        return download

    return reported


def test_a_pull_from_start_to_end_with_its_actor(beast, sent, reported, redis_db) -> None:
    download = start(file="Q4_K_M")
    ((task, (spec,), options),) = sent.tasks
    assert (task, options["queue"]) == ("neuron.pull_model", "neuron.beast")
    assert spec == {"job_id": str(download.pk), "source": SOURCE, "file": "Q4_K_M"}
    assert start(file="Q4_K_M").pk == download.pk, "it is under way already"
    entry = AuditEntry.objects.get(action="download.pull")
    assert (entry.actor, entry.object_id, entry.detail["file"]) == (str(COMMAND), SOURCE, "Q4_K_M")
    for payload in (b"{", encode_cache_report(structs.replace(REPORT, neuron="other"))):
        redis_db.set(downloads_key("beast"), payload)
        tasks.tick()  # what is malformed or another's counts for nothing
    malformed = LoadFailure(code="x", message="a\0b")
    assert reported(download, "failed", failure=malformed).status == LoadJobStatus.PENDING
    for status, progress, expected in (
        ("queued", None, ("pending", 0, None)),
        ("running", bytes_of(1 * GB, 4 * GB), ("running", 1 * GB, 0.25)),
        ("succeeded", LOADED, ("succeeded", 4 * GB, 1.0)),
    ):
        seen = reported(download, status, progress=progress)
        assert (seen.status, seen.bytes_done, seen.progress_fraction) == expected
    assert download.finished_at is not None
    for failure, code in (
        (LoadFailure(code="disk_full", message="it needs 4 GB more"), "disk_full"),
        (None, "unknown"),
    ):
        seen = reported(start(), "failed", failure=failure)
        assert (seen.status, seen.failure_code) == (LoadJobStatus.FAILED, code)
    assert Download.objects.count() == 3, "it may be tried again"


def test_a_cancelled_pull_ends_when_its_neuron_reports_it(beast, sent, reported) -> None:
    download = start()
    sent.broker_is_away = True
    with pytest.raises(errors.BrokerUnavailableError):
        services.download_cancel(actor=COMMAND, download=download)
    download.refresh_from_db()
    assert download.cancel_wanted_at is None and start(file="x").failure_code == "broker_away"
    sent.broker_is_away = False
    services.download_cancel(actor=COMMAND, download=download)
    assert sent.tasks[-1][:2] == ("neuron.cancel_pull", [str(download.pk)])
    reported(download, "cancelled", progress=bytes_of(1, 4))
    assert (download.status, download.bytes_done) == (LoadJobStatus.CANCELLED, 1)
    with pytest.raises(errors.JobCannotBeCancelledError, match="has ended"):
        services.download_cancel(actor=COMMAND, download=download)
    assert AuditEntry.objects.filter(action="download.cancel").count() == 1


def test_what_nobody_works_on_fails(beast, sent, publish_report, redis_db, monkeypatch) -> None:
    now = timezone.now()
    lost, silent, _, cancelled = (start(file=str(number)) for number in range(4))
    publish_report(jobs=[state(lost, "running"), state(silent, "queued")])
    tasks.tick()
    publish_report(jobs=[state(silent, "queued")])  # its new life knows nothing of the first
    tasks.tick()
    services.download_cancel(actor=COMMAND, download=cancelled)
    redis_db.delete(downloads_key("beast"))
    services.downloads_expire(now=now + timedelta(seconds=200))
    codes = {one.file: (one.status, one.failure_code) for one in Download.objects.all()}
    assert codes == {
        "0": ("failed", "download_lost"),
        "1": ("failed", "download_lost"),
        "2": ("failed", "not_picked_up"),
        "3": ("cancelled", ""),
    }
    # A neuron that is removed between the look at the fleet and the row is named.
    num_sent, create = len(sent.tasks), downloads._create

    def removed_first(*args: object) -> Download:
        Neuron.objects.filter(name="beast").delete()
        return create(*args)

    with pytest.raises(IntegrityError), transaction.atomic():
        again = start(file="again")
        Download.objects.create(neuron=beast, source=again.source, file="again")
    monkeypatch.setattr(downloads, "_create", removed_first)
    with pytest.raises(errors.UnknownNeuronError, match="beast"):
        start(file="other")
    assert len(sent.tasks) == num_sent and not Download.objects.exists()
    redis_db.flushdb()
    with pytest.raises(errors.PlacementRefusedError, match="no neuron"):
        start(neuron_name=None)


def test_a_download_goes_where_some_of_it_lies_else_where_there_is_room(beat, sent) -> None:
    snapshot = build_snapshot([beat(name) for name in ("a", "b", "c")], NO_DESIRED_STATES)
    part = structs.replace(CACHED, is_partial=True)
    reports = {
        "a": structs.replace(REPORT, neuron="a", disk_free_bytes=10),
        "b": structs.replace(REPORT, neuron="b", disk_free_bytes=20),
        "c": structs.replace(REPORT, neuron="c", cached=[part], disk_free_bytes=0),
    }
    for source, known, among, expected in (
        (SOURCE, reports, (), "c"),
        ("pypi:tiny", reports, (), "b"),
        ("pypi:tiny", reports, ("a",), "a"),
        ("pypi:tiny", reports, ("gone",), None),
        ("pypi:tiny", {}, (), "a"),
    ):
        assert download_neuron(source, snapshot, known, among) == expected
    offer(source=SOURCE, revision="v1", pinned_on=("b",))
    download = services.model_download_start(actor=COMMAND, model_name="tiny")
    assert (download.neuron.name, download.revision) == ("b", "v1")
    for changes, why in (
        ({"source": "llama3"}, "does not start with one of"),
        ({"source": "path:/models/tiny.gguf"}, "is not downloaded"),
        ({"file": "x" * 300}, "At most 255"),
    ):
        with pytest.raises(errors.CatalogueValueError, match=why):
            start(**changes)
    with pytest.raises(errors.UnknownModelError):
        services.model_download_start(actor=COMMAND, model_name="nobody")


def test_deleting_what_is_cached(beast, sent, publish_report) -> None:
    publish_report(cached=[CACHED, WHEEL])
    delete = partial(services.download_delete_start, actor=COMMAND, neuron_name="beast")
    with pytest.raises(errors.CachedModelNotFoundError):
        delete(source=SOURCE, revision="other")
    with pytest.raises(errors.CachedModelInUseError):
        delete(source="pypi:tiny-1.0", revision="")
    deletion = delete(source=SOURCE, revision="abc")
    spec = {"job_id": str(deletion.pk), "source": SOURCE, "revision": "abc"}
    assert [task[:2] for task in sent.tasks] == [("neuron.delete_cached", [spec])]
    with pytest.raises(errors.JobCannotBeCancelledError):
        services.download_cancel(actor=COMMAND, download=deletion)
    assert AuditEntry.objects.filter(action="download.delete").count() == 1


def test_what_ollamas_pull_asks_of_the_fleet(beast, sent, reported) -> None:
    offer(source=SOURCE)
    begun, joined = (pull_start(PullRequest(model="tiny"), COMMAND) for _ in range(2))
    download = Download.objects.get(source=SOURCE)
    assert (begun.id, begun.where, begun.status) == (str(download.pk), "beast", "pending")
    assert (begun.is_ours, joined.is_ours, begun.id) == (True, False, joined.id)
    reported(download, "running", progress=bytes_of(1, 4))
    seen = pull_look(begun)
    assert (seen.status, seen.bytes_done, seen.bytes_total) == ("running", 1, 4)
    pull_cancel(begun, COMMAND)
    download.refresh_from_db()
    assert download.cancel_wanted_at is not None
    download.delete()
    pull_cancel(begun, COMMAND)
    assert pull_look(seen).status == "cancelled"
    with pytest.raises(ModelNotFoundError):
        pull_start(PullRequest(model="llama3"), COMMAND)
    with pytest.raises(InvalidRequestError, match="is not downloaded"):
        pull_start(PullRequest(source="path:/models/tiny.gguf"), COMMAND)


def test_what_was_pulled_is_a_model_by_the_name_that_its_client_has_for_it(beast, sent) -> None:
    called = "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0"
    source = "huggingface:Qwen/Qwen3-0.6B-GGUF"
    request = PullRequest(source=source, file="Q8_0", called=called)
    state = pull_start(request, COMMAND)
    assert not CatalogueModel.objects.exists(), "nothing is offered before it is here"
    state = replace(state, status="succeeded", bytes_total=2**30)
    for _ in range(2):
        pull_offer(request, state, COMMAND)
    entry = selectors.catalogue_find(called)
    assert (entry.name, entry.source, entry.file) == ("qwen3-0.6b-q8_0", source, "Q8_0")
    assert entry.vram_mb == 1127
    created = AuditEntry.objects.filter(action__in=("model.create", "alias.create"))
    assert [entry.actor for entry in created] == 2 * [str(COMMAND)]
    other = PullRequest(source="huggingface:org/Qwen3-0.6B-Q8_0", called="hf.co/x--y/z")
    pull_offer(other, state, COMMAND)
    found = selectors.catalogue_find("qwen3-0.6b-q8_0-2")
    assert found.aliases == (), "no alias can be called so"
    # A pull of what the operator has is of that.
    model = offer("small", source=SOURCE)
    request = PullRequest(source=SOURCE, called=SOURCE)
    state = pull_start(request, COMMAND)
    pull_offer(request, state, COMMAND)
    assert selectors.catalogue_find(SOURCE).name == "small"
    change(model, enabled=False)
    with pytest.raises(InvalidRequestError, match="does not offer it"):
        pull_offer(request, state, COMMAND)
    assert not CatalogueModel.objects.get(name="small").enabled
