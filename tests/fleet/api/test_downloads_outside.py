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
from fleet.management import following
from fleet.models import CatalogueModel, Download
from inference.protocol.load_progress import LOADED
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.api.api_support import Api, key_api
from tests.fleet.services.jobs.download_reports import (
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


@pytest.fixture
def reports(publish_report, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any] | None]:
    """What the neuron reports of the one download, each time that a command looks; ``None``
    interrupts it."""
    coming: list[dict[str, Any] | None] = []

    def look_later(_seconds: float) -> None:
        changes = coming.pop(0)
        if changes is None:
            raise KeyboardInterrupt
        publish_report(jobs=[state(Download.objects.get(), **changes)])
        tasks.tick()

    monkeypatch.setattr(following, "sleep", look_later)
    return coming


def test_the_pull_command_shows_how_it_goes(beast, sent, reports) -> None:
    reports += [
        {"status": "running", "progress": bytes_of(1 * GB, 4 * GB)},
        {"status": "succeeded", "progress": LOADED},
    ]
    out, err = printed("models", "pull", SOURCE, "--neuron", "beast", "--json")
    assert json.loads(out)["status"] == "succeeded"
    assert "running 25% of 3.7 GiB" in err
    reports.append(None)
    with pytest.raises(CommandError, match="the next pull resumes it"):
        printed("models", "pull", SOURCE)
    assert sent.tasks[-1][0] == "neuron.cancel_pull"


@each_case(
    ("words", "is_found"),
    [
        ("pypi:tiny", True),
        ("pypi:tiny==1.2", True),
        ("pypi:tiny-1.2-bcc81830d10c", True),
        ("mine", True),
        ("pypi:tiny==1.3", False),
        ("pypi:ti", False),
        ("other", False),
    ],
)
def test_removal_takes_the_names_that_the_catalogue_has(
    beast, sent, publish_report, words: str, is_found: bool
) -> None:
    CatalogueModel.objects.get_or_create(name="mine", source="pypi:tiny")
    publish_report(cached=[cached("pypi:tiny-1.2-bcc81830d10c", revision="")])
    command = ("models", "cached", "--remove", words, "--dry-run")
    if is_found:
        assert "would delete pypi:tiny-1.2-bcc81830d10c" in printed(*command)[0]
        return
    with pytest.raises(CommandError, match="is cached nowhere"):
        printed(*command)


def test_the_cached_command_lists_and_removes(beast, sent, publish_report, reports) -> None:
    partial = {
        "is_partial": True,
        "missing": ["b"],
        "wanted_bytes": 20 * GB,
        "partial_bytes": GB,
        "last_used_unix_s": datetime(2026, 3, 14, tzinfo=UTC).timestamp(),
    }
    publish_report(cached=[cached(**partial)])
    out, _ = printed("models", "cached")
    assert SOURCE in out and "partial 30%" in out and "5.6 GiB" in out
    assert "2026-03-14" in out, "the day of its last use"
    assert "none of the catalogue" in out
    services.catalogue_model_create(actor=COMMAND, name="mine", source=SOURCE)
    services.catalogue_model_create(actor=COMMAND, name="other", source="huggingface:org/other")
    out, _ = printed("models", "cached")
    assert "none of the catalogue" not in out and "mine" in out and "org/other" not in out
    assert json.loads(printed("models", "cached", "--neuron", "beast", "--json")[0])[0][
        "is_partial"
    ]
    with pytest.raises(CommandError, match="is cached nowhere"):
        printed("models", "cached", "--remove", "pypi:other")
    with pytest.raises(CommandError, match="goes with --remove"):
        printed("models", "cached", "--dry-run")
    out, _ = printed("models", "cached", "--remove", SOURCE, "--dry-run")
    assert f"would delete {SOURCE}@abc on beast, 5.6 GiB" in out
    assert not sent.tasks and not Download.objects.exists()
    publish_report(cached=[cached(**partial, used_by=["tiny"])])
    with pytest.raises(CommandError, match="tiny is loaded from it"):
        printed("models", "cached", "--remove", SOURCE, "--dry-run")
    publish_report(cached=[cached(**partial)])
    reports.append({"status": "succeeded"})
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
