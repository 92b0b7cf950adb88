"""Downloads as they are asked for: REST, its events, the commands and the pages."""

from __future__ import annotations

import html
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import AsyncClient, Client
from django.urls import reverse

from fleet import services, tasks
from fleet.api.jobs import job_events
from fleet.models import Download
from inference.protocol.load_report import LOADED
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.api.api_support import Api, key_api
from tests.fleet.services.download_reports import (
    GB,
    SOURCE,
    beast,
    bytes_of,
    cached,
    publish_report,
    state,
)
from tests.metering.callers import staff
from tests.metering.commands.command_output import printed

__all__ = ["beast", "publish_report"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_rest(writer: Api, beast, sent, publish_report) -> None:
    publish_report(cached=[cached()])
    made = writer.post("downloads", {"source": SOURCE, "neuron": "beast"})
    assert (made["kind"], made["status"], made["requested_by"][:4]) == ("pull", "pending", "key:")
    assert writer.post("downloads", {"source": SOURCE})["id"] == made["id"]
    assert writer.get(f"downloads/{made['id']}")["source"] == SOURCE
    assert writer.get("downloads?status=running")["data"] == []
    (row,) = writer.get("neurons/beast/cached")["data"]
    assert (row["source"], row["files"][0]["num_bytes"]) == (SOURCE, 5 * GB)
    assert writer.get("cached")["num_rows"] == 1
    writer.get("neurons/nobody/cached", 404)
    deletion = {"kind": "delete", "neuron": "beast", "source": SOURCE, "revision": "abc"}
    num_sent, num_rows = len(sent.tasks), Download.objects.count()
    (would,) = writer.post("downloads?dry_run=true", deletion, 200)["would"]
    assert (would["action"], would["detail"]["num_bytes"]) == ("download.delete", 5 * GB)
    assert (len(sent.tasks), Download.objects.count()) == (num_sent, num_rows)
    unknown = writer.post("downloads?dry_run=true", deletion | {"source": "pypi:no"}, 404)
    assert unknown["code"] == "cached_model_not_found"
    assert writer.post("downloads?dry_run=true", {"source": SOURCE}, 400)["param"] == "dry_run"
    assert writer.post("downloads", deletion)["kind"] == "delete"
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
    printed = [part async for part in job_events(lambda: rows.pop(0), look_every_s=0.0)]
    assert [part.split(b"\n")[0] for part in printed] == [b"event: running", b"event: succeeded"]
    assert [part async for part in job_events(lambda: None)] == [b"event: gone\ndata: {}\n\n"]
    path = f"/api/downloads/{uuid.UUID(int=0)}/events"
    response = await AsyncClient().get(path, headers={"authorization": "Bearer hx_no"})
    assert response.status_code == 401


def test_the_commands_pull_list_and_remove(
    beast, sent, publish_report, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr("fleet.management.backend.sleep", look_later)
    coming += [
        {"status": "running", "progress": bytes_of(1 * GB, 4 * GB)},
        {"status": "succeeded", "progress": LOADED},
    ]
    out, err = printed("models", "pull", SOURCE, "--neuron", "beast", "--json")
    assert json.loads(out)["status"] == "succeeded" and "running 25% of 3.7 GiB" in err
    coming.append(None)
    refused("the next pull resumes it", "pull", SOURCE)
    assert sent.tasks[-1][0] == "neuron.cancel_pull"
    num_sent, num_rows = len(sent.tasks), Download.objects.count()

    used = datetime(2026, 3, 14, tzinfo=UTC).timestamp()
    partial = {"is_partial": True, "missing": ["b"], "wanted_bytes": 20 * GB, "partial_bytes": GB}
    partial["last_used_unix_s"] = used
    wheel = cached("pypi:tiny-1.2-bcc81830d10c", revision="")
    publish_report(cached=[cached(**partial), wheel])
    out, _ = printed("models", "cached")
    for words in (SOURCE, "partial 30%", "5.6 GiB", "2026-03-14", "none of the catalogue"):
        assert words in out
    for name, source in (("mine", SOURCE), ("tiny", "pypi:tiny"), ("other", "pypi:other")):
        services.catalogue_model_create(actor=COMMAND, name=name, source=source)
    out, _ = printed("models", "cached")
    assert "none of the catalogue" not in out and "mine" in out and "pypi:other" not in out
    out, _ = printed("models", "cached", "--neuron", "beast", "--json")
    assert json.loads(out)[0]["is_partial"]
    # What is removed goes by the names that the catalogue has.
    for words in ("pypi:tiny", "pypi:tiny==1.2", "pypi:tiny-1.2-bcc81830d10c", "tiny"):
        out, _ = printed("models", "cached", "--remove", words, "--dry-run")
        assert "would delete pypi:tiny-1.2-bcc81830d10c" in out
    for words in ("pypi:other", "pypi:tiny==1.3", "pypi:ti", "other"):
        refused("is cached nowhere", "cached", "--remove", words)
    refused("goes with --remove", "cached", "--dry-run")
    out, _ = printed("models", "cached", "--remove", SOURCE, "--dry-run")
    assert f"would delete {SOURCE}@abc on beast, 5.6 GiB" in out
    assert (len(sent.tasks), Download.objects.count()) == (num_sent, num_rows)
    publish_report(cached=[cached(**partial, used_by=["tiny"])])
    refused("tiny is loaded from it", "cached", "--remove", SOURCE, "--dry-run")
    publish_report(cached=[cached(**partial)])
    coming.append({"status": "succeeded"})
    out, _ = printed("models", "cached", "--remove", f"{SOURCE}@abc")
    assert f"delete {SOURCE} on beast: succeeded" in out


def test_the_pages_pull_show_and_delete(admin_client: Client, beast, sent, publish_report) -> None:
    publish_report(cached=[cached(), cached("pypi:tiny-1.0", revision="", used_by=["tiny"])])
    page = reverse("admin:fleet_download_cached")
    viewer = staff("viewer", "view_download")
    assert viewer.get(page).status_code == 200
    assert viewer.post(page, {"source": SOURCE, "neuron": "beast"}).status_code == 403
    assert sent.tasks == []
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
