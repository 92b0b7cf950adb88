"""An engine's log and downloads: REST, events, the commands and the pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.core.management import CommandError
from django.test import AsyncClient, Client
from django.urls import reverse
from msgspec import structs

from fleet import neuron_client, services, tasks
from fleet.api.jobs import job_events
from fleet.models import Download, Replica
from helexa_site.program import REPOSITORY_DIR
from inference.neuron.replicas.engine_process import EngineLogs
from inference.protocol.load_report import LOADED
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act, page, url
from tests.fleet.admin.admin_pages import sent as posted
from tests.fleet.api.api_support import Api, key_api
from tests.fleet.conftest import offer
from tests.fleet.services.test_downloads import (
    CACHED,
    GB,
    SOURCE,
    WHEEL,
    beast,
    bytes_of,
    publish_report,
    state,
)
from tests.metering.callers import staff, text_of
from tests.metering.commands.command_output import output, printed

__all__ = ["beast", "publish_report"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_rest(writer: Api, beast, sent, publish_report) -> None:
    publish_report(cached=[CACHED])
    made = writer.post("downloads", {"source": SOURCE, "neuron": "beast"})
    assert (made["kind"], made["status"], made["requested_by"][:4]) == ("pull", "pending", "key:")
    assert writer.post("downloads", {"source": SOURCE})["id"] == made["id"]
    assert writer.get("downloads?status=running")["data"] == []
    (row,) = writer.get("neurons/beast/cached")["data"]
    assert (row["source"], row["files"][0]["num_bytes"]) == (SOURCE, 5 * GB)
    writer.get("neurons/nobody/cached", 404)
    deletion = {"kind": "delete", "neuron": "beast", "source": SOURCE, "revision": "abc"}
    dry = "downloads?dry_run=true"
    (would,) = writer.post(dry, deletion, 200)["would"]
    assert (would["action"], would["detail"]["num_bytes"]) == ("download.delete", 5 * GB)
    assert (len(sent.tasks), Download.objects.count()) == (1, 1)
    unknown = writer.post(dry, deletion | {"source": "pypi:no"}, 404)
    assert unknown["code"] == "cached_model_not_found"
    assert writer.post("downloads", deletion)["kind"] == "delete"
    for path, body, param in (
        (dry, {"source": SOURCE}, "dry_run"),
        ("downloads", {"kind": "steal"}, "kind"),
        ("downloads", {"source": "llama3"}, "source"),
        ("downloads", {"source": SOURCE, "files": []}, "files"),
        ("downloads", {"model": "tiny", "source": SOURCE}, "source"),
        ("downloads", {"kind": "delete", "model": "tiny"}, "model"),
    ):
        assert writer.post(path, body, 400)["param"] == param
    writer.post(f"downloads/{made['id']}/cancel")
    assert sent.tasks[-1][0] == "neuron.cancel_pull"
    reader = key_api("fleet:read")
    reader.post("downloads", {"source": SOURCE}, 403)
    assert reader.get("cached")["num_rows"] == 1


async def test_events_end_with_the_download() -> None:
    rows: list[dict[str, Any] | None] = [
        {"status": "running", "finished_at": None},
        {"status": "running", "finished_at": None},
        {"status": "succeeded", "finished_at": "now"},
    ]
    printed = [part async for part in job_events(lambda: rows.pop(0), look_every_s=0.0)]
    assert [part.split(b"\n")[0] for part in printed] == [b"event: running", b"event: succeeded"]
    assert [part async for part in job_events(lambda: None)] == [b"event: gone\ndata: {}\n\n"]
    path = f"/api/downloads/{uuid.UUID(int=0)}/events"
    response = await AsyncClient().get(path, headers={"authorization": "Bearer hx_no"})
    assert response.status_code == 401


def test_the_commands_pull_list_and_remove(beast, sent, publish_report, monkeypatch) -> None:
    coming: list[dict[str, Any] | None] = []
    """What the neuron reports of the newest download, each time that a command looks; ``None``
    interrupts it."""

    def look_later(_seconds: float) -> None:
        changes = coming.pop(0)
        if changes is None:
            raise KeyboardInterrupt
        newest = Download.objects.latest("created_at")
        publish_report(jobs=[state(newest, **changes)])
        tasks.tick()

    def refused(why: str, *words: str) -> None:
        with pytest.raises(CommandError, match=why):
            printed("models", *words)

    def cached(*words: str) -> str:
        return printed("models", "cached", *words)[0]

    def removed(*words: str) -> str:
        return cached("--remove", *words, "--dry-run")

    monkeypatch.setattr("fleet.management.backend.sleep", look_later)
    running = {"status": "running", "progress": bytes_of(1 * GB, 4 * GB)}
    coming += [running, {"status": "succeeded", "progress": LOADED}]
    out, err = printed("models", "pull", SOURCE, "--neuron", "beast", "--json")
    assert json.loads(out)["status"] == "succeeded" and "running 25% of 3.7 GiB" in err
    coming.append(None)
    refused("the next pull resumes it", "pull", SOURCE)
    assert sent.tasks[-1][0] == "neuron.cancel_pull"
    num_sent, num_rows = len(sent.tasks), Download.objects.count()

    used = datetime(2026, 3, 14, tzinfo=UTC).timestamp()
    sizes = {"missing": ["b"], "wanted_bytes": 20 * GB, "partial_bytes": GB}
    partial = structs.replace(CACHED, is_partial=True, last_used_unix_s=used, **sizes)
    name = "pypi:tiny-1.2-bcc81830d10c"
    publish_report(cached=[partial, structs.replace(CACHED, source=name, revision="")])
    out = cached()
    for words in (SOURCE, "partial 30%", "5.6 GiB", "2026-03-14", "none of the catalogue"):
        assert words in out
    offer("mine", source=SOURCE)
    offer("tiny")
    offer("other")
    out = cached()
    assert "none of the catalogue" not in out and "mine" in out and "pypi:other" not in out
    # What is removed goes by the names that the catalogue has.
    for words in ("pypi:tiny", "pypi:tiny==1.2", name, "tiny"):
        assert f"would delete {name}" in removed(words)
    for words in ("pypi:other", "pypi:tiny==1.3", "pypi:ti", "other"):
        refused("is cached nowhere", "cached", "--remove", words)
    refused("goes with --remove", "cached", "--dry-run")
    assert f"would delete {SOURCE}@abc on beast, 5.6 GiB" in removed(SOURCE)
    assert (len(sent.tasks), Download.objects.count()) == (num_sent, num_rows)
    publish_report(cached=[structs.replace(partial, used_by=["tiny"])])
    refused("tiny is loaded from it", "cached", "--remove", SOURCE, "--dry-run")
    publish_report(cached=[partial])
    coming.append({"status": "succeeded"})
    assert f"delete {SOURCE} on beast: succeeded" in cached("--remove", f"{SOURCE}@abc")


def test_the_pages_pull_show_and_delete(admin_client: Client, beast, sent, publish_report) -> None:
    publish_report(cached=[CACHED, WHEEL])
    pull = {"source": SOURCE, "neuron": "beast"}
    viewer = staff("viewer", "view_download")
    cached = url("download", "cached")
    assert viewer.get(cached).status_code == 200
    assert viewer.post(cached, pull).status_code == 403 and sent.tasks == []
    shown = page(admin_client, "download", "cached")
    assert SOURCE in shown and shown.count(">Delete</button>") == 1 and ">tiny</td>" in shown
    assert "is being downloaded" in posted(admin_client, "download", "cached", **pull)
    assert "does not start with" in posted(admin_client, "download", "cached", source="x")
    deletion = {"delete": SOURCE, "revision": "abc", "neuron": "beast"}
    posted(admin_client, "download", "cached", **deletion)
    assert [task for task, *_ in sent.tasks] == ["neuron.pull_model", "neuron.delete_cached"]
    assert {entry.actor for entry in AuditEntry.objects.all()} == {"user:admin"}
    act(admin_client, "download", "cancel_selected", Download.objects.get(kind="pull"))
    assert sent.tasks[-1][0] == "neuron.cancel_pull"


class Neuron:
    """Stands where Celery's ``send_task`` is."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.logs = EngineLogs(client, neuron="beast")
        self.is_silent = False

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        assert (name, options["queue"]) == ("neuron.tell_log", "neuron.beast")
        if not self.is_silent:
            self.logs.send(*args)


@pytest.fixture
def neuron(publish, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Neuron:
    services.heartbeat_record(heartbeat=publish())
    model = offer()
    services.alias_create(actor=COMMAND, name="org/tiny", model=model)
    neuron = Neuron(redis_db)
    monkeypatch.setattr(neuron_client, "app", neuron)
    for number in range(200):
        neuron.logs.writer("tiny")(f"line {number}\n".encode())
    return neuron


def test_logs_by_rest(neuron: Neuron, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = key_api("fleet:read")
    answer = reader.get("neurons/beast/models/org/tiny/logs?lines=2")
    assert answer == {"neuron": "beast", "model": "tiny", "lines": ["line 198", "line 199"]}
    assert len(reader.get("neurons/beast/models/org/tiny/logs")["lines"]) == 100
    for lines in ("0", "5001", "x", "-1", "9" * 30, "²"):
        refused = reader.get(f"neurons/beast/models/org/tiny/logs?lines={lines}", 400)
        assert refused["param"] == "lines"
    assert reader.get("neurons/beast/models/nobody/logs", 404)["code"] == "replica_not_found"
    assert reader.get("neurons/nobody/models/tiny/logs", 404)["code"] == "neuron_not_found"
    key_api("inference").get("neurons/beast/models/org/tiny/logs", 403)
    monkeypatch.setattr(neuron_client, "ANSWER_TIMEOUT_S", 0.1)
    neuron.is_silent = True
    assert reader.get("neurons/beast/models/org/tiny/logs", 503)["code"] == "log_unavailable"


def test_the_command_and_the_page(neuron: Neuron, beat, build, admin_client: Client) -> None:
    where = "/admin/dashboard/log/beast/{}".format

    def linked(model: str) -> str:
        beat(replicas=[build.replica(model=model)])
        (replica,) = Replica.objects.all()
        return text_of(admin_client, reverse("admin:fleet_replica_change", args=[replica.pk]))

    assert output("logs", "beast", "org/tiny", "--lines", "2") == "line 198\nline 199\n"
    with pytest.raises(CommandError, match="No engine for nobody has run on beast"):
        output("logs", "beast", "nobody")
    neuron.logs.writer("tiny")(b"CUDA <out> of memory\n")
    assert where("tiny") in linked("tiny")
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where("tiny"))
    beat()  # a reload: the replica's row goes, and another comes
    assert not Replica.objects.exists()
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where("tiny"))
    assert where("org/tiny") in linked("org/tiny")
    neuron.logs = EngineLogs(neuron.client, neuron="beast")
    assert "No engine for tiny has run" in text_of(admin_client, where("tiny"))
    nobody = text_of(admin_client, "/admin/dashboard/log/nobody/tiny")
    assert "no neuron" in nobody.lower()
    assert Client().get(where("tiny")).status_code == 302


EIGHT_AT_ONCE = """
import sys, threading
import django
django.setup()
from fleet import neuron_client

class App:
    def send_task(self, *_, **__):
        neuron_client._sending_app()

def send():
    together.wait()
    neuron_client.send("a task", "beast")
    sent.append(1)

neuron_client.app, sent, together = App(), [], threading.Barrier(8)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=send) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(sent) != 8)
"""


def test_the_first_messages_of_several_threads_are_all_sent() -> None:
    subprocess.run(
        [sys.executable, "-c", EIGHT_AT_ONCE], cwd=REPOSITORY_DIR, env=os.environ, check=True
    )
