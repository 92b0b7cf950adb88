"""Downloads from the first request to their end: services, REST, commands and pages, with a Celery
that only writes things down and a neuron whose reports the tests write."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone

from fleet import selectors, services, tasks
from fleet.api.job_events import job_events
from fleet.errors import (
    CachedModelInUseError,
    CachedModelNotFoundError,
    CatalogueValueError,
    JobCannotBeCancelledError,
    PlacementRefusedError,
    UnknownModelError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.management import download_progress
from fleet.models import CatalogueModel, Download, Neuron
from fleet.placement.download_place import download_neuron
from fleet.snapshot import build_snapshot
from fleet.wishes import NO_WISHES
from inference.gateway.pulls import pull_cancel, pull_look, pull_offer, pull_start
from inference.protocol.downloads import (
    CachedFile,
    CachedModel,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    encode_cache_report,
)
from inference.protocol.keys import downloads_key
from inference.protocol.load import LOADED, LoadFailure, LoadProgress, LoadStage
from inference.wire.errors import InvalidRequestError, ModelNotFoundError
from inference.wire.ollama_pull import PullRequest
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.api_support import Api, key_api

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = "huggingface:Qwen/Qwen3-0.6B"
GB = 10**9


def cached(source: str = SOURCE, **changes: Any) -> CachedModel:
    values: dict[str, Any] = {
        "revision": "abc",
        "files": [CachedFile(name="model.safetensors", num_bytes=5 * GB)],
        "num_bytes": 5 * GB,
    }
    return CachedModel(source=source, **values | changes)


def report(neuron: str = "beast", **changes: Any) -> CacheReport:
    values: dict[str, Any] = {
        "time_unix_s": 1e9,
        "disk_total_bytes": 100 * GB,
        "disk_free_bytes": 50 * GB,
        "cached": [],
        "jobs": [],
    }
    return CacheReport(neuron=neuron, **values | changes)


@pytest.fixture
def say(redis_db: redis.Redis) -> Callable[..., None]:
    """The neuron reports its downloads."""

    def say(neuron: str = "beast", **changes: Any) -> None:
        redis_db.set(downloads_key(neuron), encode_cache_report(report(neuron, **changes)))

    return say


@pytest.fixture
def beast(publish) -> Neuron:
    services.heartbeat_record(heartbeat=publish())
    return Neuron.objects.get()


def start(**changes: Any) -> Download:
    return services.download_start(
        **{"actor": COMMAND, "source": SOURCE, "neuron_name": "beast"} | changes
    )


def state(download: Download, status: str, **changes: Any) -> CacheJobState:
    return CacheJobState(
        job_id=str(download.pk),
        kind="pull",
        source=download.source,
        status=CacheJobStatus(status),
        since_unix_s=1e9,
        **changes,
    )


def bytes_of(done: int, total: int) -> LoadProgress:
    return LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail="a.gguf")


def test_a_pull_from_start_to_end_with_its_actor(beast, sent, say) -> None:
    download = start(file="Q4_K_M")
    ((task, (spec,), options),) = sent.tasks
    assert (task, options["queue"]) == ("neuron.pull_model", "neuron.beast")
    assert spec == {"job_id": str(download.pk), "source": SOURCE, "file": "Q4_K_M"}
    assert start(file="Q4_K_M").pk == download.pk, "it is under way already"
    entry = AuditEntry.objects.get(action="download.pull")
    assert (entry.actor, entry.object_id, entry.detail["file"]) == ("command", SOURCE, "Q4_K_M")

    say(jobs=[state(download, "queued")])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert download.status == LoadJobStatus.PENDING
    say(jobs=[state(download, "running", progress=bytes_of(1 * GB, 4 * GB))])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert (download.status, download.progress_fraction) == (LoadJobStatus.RUNNING, 0.25)
    say(jobs=[state(download, "succeeded", progress=LOADED)])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert (download.status, download.bytes_done) == (LoadJobStatus.SUCCEEDED, 4 * GB)
    assert download.finished_at is not None


def test_a_pull_that_finds_no_room_says_so(beast, sent, say) -> None:
    download = start()
    failure = LoadFailure(code="disk_full", message="it needs 4 GB more")
    say(jobs=[state(download, "failed", failure=failure)])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert (download.status, download.failure_code) == (LoadJobStatus.FAILED, "disk_full")
    assert start().pk != download.pk, "it may be tried again"


def test_a_cancelled_pull_ends_when_its_neuron_says_so(beast, sent, say) -> None:
    download = start()
    services.download_cancel(actor=COMMAND, download=download)
    assert sent.tasks[-1][:2] == ("neuron.cancel_pull", [str(download.pk)])
    say(jobs=[state(download, "cancelled", progress=bytes_of(1, 4))])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert (download.status, download.bytes_done) == (LoadJobStatus.CANCELLED, 1)
    with pytest.raises(JobCannotBeCancelledError):
        services.download_cancel(actor=COMMAND, download=download)
    assert AuditEntry.objects.filter(action="download.cancel").count() == 1


def test_a_cancellation_that_redis_does_not_take_is_none(beast, sent) -> None:
    download = start()
    sent.broker_is_away = True
    with pytest.raises(Exception, match="Redis does not take the task"):
        services.download_cancel(actor=COMMAND, download=download)
    download.refresh_from_db()
    assert download.cancel_wanted_at is None
    assert not AuditEntry.objects.filter(action="download.cancel").exists()
    assert start(file="other").failure_code == "broker_away"


def test_what_nobody_works_on_has_failed(beast, sent, say, redis_db) -> None:
    now = timezone.now()
    lost, silent, _, cancelled = (start(file=str(number)) for number in range(4))
    say(jobs=[state(lost, "running"), state(silent, "queued")])
    tasks.record_heartbeats()
    say(jobs=[state(silent, "queued")])  # a new life of the neuron knows nothing of the first
    tasks.record_heartbeats()
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


def test_a_report_that_is_malformed_or_anothers_counts_for_nothing(
    beast, sent, say, redis_db
) -> None:
    download = start()
    for payload in (b"{", encode_cache_report(report("other"))):
        redis_db.set(downloads_key("beast"), payload)
        tasks.record_heartbeats()
    failure = LoadFailure(code="x", message="a\0b")
    say(jobs=[state(download, "failed", failure=failure)])
    tasks.record_heartbeats()
    download.refresh_from_db()
    assert download.status == LoadJobStatus.PENDING


def test_what_is_not_downloaded_is_refused_by_name(beast) -> None:
    with pytest.raises(CatalogueValueError, match="does not start with one of"):
        start(source="llama3")
    with pytest.raises(CatalogueValueError, match="is not downloaded"):
        start(source="path:/models/tiny.gguf")
    with pytest.raises(CatalogueValueError, match="at most 255"):
        start(file="x" * 300)
    with pytest.raises(UnknownModelError):
        services.model_download_start(actor=COMMAND, model_name="nobody")


def test_a_model_of_the_catalogue_is_pulled_where_it_is_pinned(publish, sent) -> None:
    for name in ("beast", "beauty"):
        services.heartbeat_record(heartbeat=publish(name))
    services.catalogue_model_create(
        actor=COMMAND, name="tiny", source=SOURCE, revision="v1", pinned_on=("beauty",)
    )
    download = services.model_download_start(actor=COMMAND, model_name="tiny")
    assert (download.neuron.name, download.revision) == ("beauty", "v1")


def test_the_database_has_one_active_pull_of_the_same(beast, sent) -> None:
    download = start()
    with pytest.raises(IntegrityError), transaction.atomic():
        Download.objects.create(neuron=beast, source=download.source)


def test_a_download_goes_where_some_of_it_lies_else_where_there_is_room(build) -> None:
    snapshot = build_snapshot([build.heartbeat(name) for name in ("a", "b", "c")], NO_WISHES)
    reports = {
        "a": report("a", disk_free_bytes=10),
        "b": report("b", disk_free_bytes=20),
        "c": report("c", cached=[cached(is_partial=True)], disk_free_bytes=0),
    }
    assert download_neuron(SOURCE, snapshot, reports) == "c"
    assert download_neuron("pypi:tiny", snapshot, reports) == "b"
    assert download_neuron("pypi:tiny", snapshot, reports, ("a",)) == "a"
    assert download_neuron("pypi:tiny", snapshot, reports, ("gone",)) is None
    assert download_neuron("pypi:tiny", snapshot, {}) == "a"


def test_with_no_neuron_there_is_nowhere_to_pull_to(beast, redis_db) -> None:
    redis_db.flushdb()
    with pytest.raises(PlacementRefusedError, match="no neuron"):
        start(neuron_name=None)


def test_deleting_what_is_cached(beast, sent, say) -> None:
    say(cached=[cached(), cached("pypi:tiny-1.0", revision="", used_by=["tiny"])])
    delete = services.download_delete_start
    for source, revision, error in (
        (SOURCE, "other", CachedModelNotFoundError),
        ("pypi:tiny-1.0", "", CachedModelInUseError),
    ):
        with pytest.raises(error):
            delete(actor=COMMAND, neuron_name="beast", source=source, revision=revision)
    deletion = delete(actor=COMMAND, neuron_name="beast", source=SOURCE, revision="abc")
    assert sent.tasks == [
        (
            "neuron.delete_cached",
            [{"job_id": str(deletion.pk), "source": SOURCE, "revision": "abc"}],
            sent.tasks[0][2],
        )
    ]
    with pytest.raises(JobCannotBeCancelledError):
        services.download_cancel(actor=COMMAND, download=deletion)
    assert AuditEntry.objects.filter(action="download.delete").count() == 1


def test_what_ollamas_pull_asks_of_the_fleet(beast, sent, say) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source=SOURCE)
    started = pull_start(PullRequest(model="tiny"), COMMAND)
    download = Download.objects.get(source=SOURCE)
    assert (started.id, started.where, started.status) == (str(download.pk), "beast", "pending")
    say(jobs=[state(download, "running", progress=bytes_of(1, 4))])
    tasks.record_heartbeats()
    seen = pull_look(started)
    assert (seen.status, seen.bytes_done, seen.bytes_total) == ("running", 1, 4)
    download.delete()
    assert pull_look(seen).status == "cancelled"
    with pytest.raises(ModelNotFoundError):
        pull_start(PullRequest(model="llama3"), COMMAND)
    with pytest.raises(InvalidRequestError, match="is not downloaded"):
        pull_start(PullRequest(source="path:/models/tiny.gguf"), COMMAND)


def test_a_pull_knows_whether_it_began_the_download_and_ends_it(beast, sent) -> None:
    request = PullRequest(source=SOURCE, called="hf.co/Qwen/Qwen3-0.6B")
    begun, joined = pull_start(request, COMMAND), pull_start(request, COMMAND)
    assert (begun.is_ours, joined.is_ours, begun.id) == (True, False, joined.id)
    pull_cancel(begun, COMMAND)
    download = Download.objects.get(pk=begun.id)
    assert download.cancel_wanted_at is not None
    Download.objects.filter(pk=begun.id).delete()
    pull_cancel(begun, COMMAND)


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
    assert entry is not None
    assert (entry.name, entry.source, entry.file) == ("qwen3-0.6b-q8_0", source, "Q8_0")
    assert entry.vram_mb == 1127
    created = AuditEntry.objects.filter(action__in=("model.create", "alias.create"))
    assert [entry.actor for entry in created] == ["command", "command"]
    other = PullRequest(source="huggingface:org/Qwen3-0.6B-Q8_0", called="hf.co/x--y/z")
    pull_offer(other, state, COMMAND)
    found = selectors.catalogue_find("qwen3-0.6b-q8_0-2")
    assert found is not None and found.aliases == (), "no alias can be called so"


def test_a_pull_of_what_the_operator_has_is_of_that(beast, sent) -> None:
    model = services.catalogue_model_create(actor=COMMAND, name="small", source=SOURCE)
    request = PullRequest(source=SOURCE, called=SOURCE)
    state = pull_start(request, COMMAND)
    pull_offer(request, state, COMMAND)
    entry = selectors.catalogue_find(SOURCE)
    assert entry is not None and entry.name == "small"
    model.enabled = False
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["enabled"])
    with pytest.raises(InvalidRequestError, match="does not offer it"):
        pull_offer(request, state, COMMAND)
    assert not CatalogueModel.objects.get().enabled


@pytest.fixture
def writer(settings: Any) -> Api:
    settings.ALLOWED_HOSTS = ["testserver"]
    return key_api("fleet:read", "fleet:write")


def test_rest(writer: Api, beast, sent, say) -> None:
    say(cached=[cached()])
    made = writer.post("downloads", {"source": SOURCE, "neuron": "beast"})
    assert (made["kind"], made["status"], made["requested_by"][:4]) == ("pull", "pending", "key:")
    assert writer.post("downloads", {"source": SOURCE})["id"] == made["id"]
    assert writer.get(f"downloads/{made['id']}")["source"] == SOURCE
    assert writer.get("downloads?status=running")["data"] == []
    (row,) = writer.get("neurons/beast/cached")["data"]
    assert (row["source"], row["files"][0]["num_bytes"]) == (SOURCE, 5 * GB)
    assert writer.get("cached")["num_rows"] == 1
    writer.get("neurons/nobody/cached", 404)
    deleted = writer.post(
        "downloads", {"kind": "delete", "neuron": "beast", "source": SOURCE, "revision": "abc"}
    )
    assert deleted["kind"] == "delete"
    for body, param in (
        ({"kind": "steal"}, "kind"),
        ({"source": "llama3"}, "source"),
        ({"source": SOURCE, "files": []}, "files"),
        ({"model": "tiny", "source": SOURCE}, "source"),
        ({"kind": "delete", "model": "tiny"}, "model"),
    ):
        assert writer.post("downloads", body, 400)["param"] == param
    writer.post(f"downloads/{made['id']}/cancel")
    assert sent.tasks[-1][0] == "neuron.cancel_pull"
    reader = key_api("fleet:read")
    reader.post("downloads", {"source": SOURCE}, 403)
    reader.get("cached")


async def test_events_end_with_the_download() -> None:
    rows: list[dict[str, Any] | None] = [
        {"status": "running", "finished_at": None},
        {"status": "running", "finished_at": None},
        {"status": "succeeded", "finished_at": "now"},
    ]
    told = [part async for part in job_events(lambda: rows.pop(0), look_every_s=0.0)]
    assert [part.split(b"\n")[0] for part in told] == [b"event: running", b"event: succeeded"]
    assert [part async for part in job_events(lambda: None)] == [b"event: gone\ndata: {}\n\n"]


async def test_events_over_http_need_a_key(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    response = await AsyncClient().get(
        "/api/downloads/00000000-0000-0000-0000-000000000000/events",
        headers={"authorization": "Bearer hx_no"},
    )
    assert response.status_code in (401, 403, 404)


def told(*words: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_pull_command_shows_how_it_goes(beast, sent, say, monkeypatch) -> None:
    steps: list[Callable[[Download], CacheJobState]] = [
        lambda one: state(one, "running", progress=bytes_of(1 * GB, 4 * GB)),
        lambda one: state(one, "succeeded", progress=LOADED),
    ]

    def look_later(_seconds: float) -> None:
        say(jobs=[steps.pop(0)(Download.objects.get())])
        tasks.record_heartbeats()

    monkeypatch.setattr(download_progress, "sleep", look_later)
    out, err = told("models", "pull", SOURCE, "--neuron", "beast", "--json")
    assert json.loads(out)["status"] == "succeeded"
    assert "running 25% of 3.7 GiB" in err


def test_an_interrupted_pull_command_cancels_the_download(beast, sent, monkeypatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download_progress, "sleep", interrupt)
    with pytest.raises(CommandError, match="the next pull resumes it"):
        told("models", "pull", SOURCE)
    assert sent.tasks[-1][0] == "neuron.cancel_pull"


def test_the_cached_command_lists_and_removes(beast, sent, say, monkeypatch) -> None:
    say(cached=[cached(is_partial=True)])
    out, _ = told("models", "cached")
    assert SOURCE in out and "partial" in out and "4.7 GiB" in out
    assert json.loads(told("models", "cached", "--neuron", "beast", "--json")[0])[0]["is_partial"]
    with pytest.raises(CommandError, match="is cached nowhere"):
        told("models", "cached", "--remove", "pypi:other")

    def look_later(_seconds: float) -> None:
        say(jobs=[state(Download.objects.get(), "succeeded")])
        tasks.record_heartbeats()

    monkeypatch.setattr(download_progress, "sleep", look_later)
    out, _ = told("models", "cached", "--remove", f"{SOURCE}@abc")
    assert f"delete {SOURCE} on beast: succeeded" in out


def test_the_pages_pull_show_and_delete(admin_client: Client, beast, sent, say) -> None:
    say(cached=[cached(), cached("pypi:tiny-1.0", revision="", used_by=["tiny"])])
    page = reverse("admin:fleet_download_cached")
    shown = admin_client.get(page).content.decode()
    assert SOURCE in shown and shown.count(">Delete</button>") == 1 and ">tiny</td>" in shown
    given = {"source": SOURCE, "neuron": "beast"}
    assert "is being downloaded" in html.unescape(
        admin_client.post(page, given, follow=True).content.decode()
    )
    assert "does not start with" in admin_client.post(page, {"source": "x"}).content.decode()
    deletion = {"delete": SOURCE, "revision": "abc", "neuron": "beast"}
    admin_client.post(page, deletion, follow=True)
    assert [task for task, *_ in sent.tasks] == ["neuron.pull_model", "neuron.delete_cached"]
    assert {entry.actor for entry in AuditEntry.objects.all()} == {"user:admin"}
    changelist = reverse("admin:fleet_download_changelist")
    assert SOURCE in admin_client.get(changelist).content.decode()
    pull = Download.objects.get(kind="pull")
    chosen = {"action": "cancel_selected", "_selected_action": [str(pull.pk)]}
    admin_client.post(changelist, chosen, follow=True)
    assert sent.tasks[-1][0] == "neuron.cancel_pull"


def test_who_may_only_look_pulls_nothing(client: Client, beast, sent) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_download"))
    client.force_login(viewer)
    page = reverse("admin:fleet_download_cached")
    assert client.get(page).status_code == 200
    assert client.post(page, {"source": SOURCE, "neuron": "beast"}).status_code == 403
    assert sent.tasks == []
