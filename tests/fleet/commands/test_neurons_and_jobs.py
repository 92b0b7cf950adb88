"""The commands neurons, settings, aliases, jobs, audit, downloads and status, with a database or a
server, and following a job."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError

from fleet import services
from fleet.live.snapshot import FleetSnapshot
from fleet.management.following import follow
from fleet.models import LoadJob
from inference.protocol import keys
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.held import encode_held_requests, held_requests
from inference.request_ids import new_request_id
from metering.actor import COMMAND
from tests.fleet.commands.conftest import RunCommand

pytestmark = pytest.mark.django_db(transaction=True)
GIB = 1024**3


def json_of(run_command: RunCommand, words: str) -> Any:
    return json.loads(run_command(*words.split(), "--json"))


def test_neurons_are_shown_and_the_policy_changes(run_command: RunCommand, beat, build) -> None:
    sizes = {"total_memory_bytes": 6 * GIB, "installed_memory_bytes": 16 * GIB}
    beat(devices=[build.device(**sizes)])
    assert "cpu" in run_command("neurons", "show", "beast")
    for command in (["status"], ["neurons", "list"]):
        assert "of 6.0 GiB (limit, of 16.0 GiB)" in run_command(*command)
    (neuron,) = json_of(run_command, "neurons list")
    assert neuron["devices"][0]["installed_memory_bytes"] == 16 * GIB
    assert json_of(run_command, "neurons list --status away") == []
    assert "automatic" in run_command("neurons", "policy")
    assert "click" in run_command("neurons", "policy", "--admission", "click")


def test_settings_are_listed(run_command: RunCommand) -> None:
    listed = run_command("settings", "list", "--name", "BENCH_PUBLIC")
    assert listed.split()[:3] == ["name", "value", "default"] and listed.split()[-1] == "0"
    assert ("As set for this command" in run_command.err) == (not run_command._extra)
    found = json_of(run_command, "settings list --name retention,log_level")
    assert all("RETENTION" in row["name"] or "LOG_LEVEL" in row["name"] for row in found)
    assert "HELEXA_REQUEST_RETENTION_DAYS" in {row["name"] for row in found}
    for given in (True, False):
        rows = json_of(run_command, f"settings list --set {str(given).lower()}")
        assert rows and all(bool(row["value"]) is given for row in rows)
    with pytest.raises(CommandError, match="'maybe' is none of true, false"):
        run_command("settings", "list", "--set", "maybe")
    assert "HELEXA_DATA_DIR" in run_command("settings", "show", "HELEXA_DATA_DIR")


def test_a_host_is_invited_here_or_at_a_server(run_command: RunCommand, monkeypatch) -> None:
    for name in ("_ensure_redis_can", "redis_users_apply"):
        monkeypatch.setattr(f"fleet.services.hosts.invitations.{name}", lambda: None)
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=False, certificate="")
    assert "neuron --join hx1." in run_command("neurons", "invite", "beast")
    assert "beast" in run_command("neurons", "invitations")
    assert "beast" not in run_command("neurons", "invitations", "--neuron", "beauty")
    assert json_of(run_command, "neurons invitations --invited-by ann") == []
    shown = run_command("neurons", "invitation", "beast")
    assert "invited_by" in shown and "hx1." not in shown
    with pytest.raises(CommandError, match="'nobody' has no invitation"):
        run_command("neurons", "invitation", "nobody")
    assert "would neuron.revoke beast" in run_command("neurons", "revoke", "beast", "--dry-run")
    assert "beast can reach Redis no more" in run_command("neurons", "revoke", "beast")


def _hold(redis_db, held) -> None:
    redis_db.delete(keys.held_key("beast"))
    packed = {name: encode_held_requests(one) for name, one in held.items()}
    redis_db.hset(keys.held_key("beast"), mapping=packed)


def test_neurons(run_command: RunCommand, beat, build, redis_db) -> None:
    beat()
    assert "a processor" in run_command("neurons", "list")
    assert run_command("neurons", "drain", "beast").endswith("; nothing runs there now.\n")
    beat()
    assert json.loads(run_command("neurons", "list", "--json"))[0]["status"] == "draining"
    beat(
        replicas=[
            build.replica(stats=build.stats(in_flight=2, queue_depth=1)),
            build.replica(model="new", status=ReplicaStatus.LOADING),
            build.replica(model="idle"),
        ]
    )
    assert "; at work there now: new (loading), tiny (3 requests).\n" in run_command(
        "neurons", "drain", "beast"
    )
    told = run_command("neurons", "drain", "beast", "--within", "60")
    assert told.endswith("tiny (3 requests), and is ended after 60 s.\n")
    ids = [new_request_id(1_000 + number) for number in range(12)]
    held = held_requests("epoch", 1, {"g": ids[:2], "h": [ids[2], "\x1b[2Jevil"]}, behind=["i"])
    _hold(redis_db, held)
    (shown,) = json.loads(run_command("neurons", "list", "--json"))
    assert shown["requests"] == ids[:3]
    told = run_command("neurons", "drain", "beast")
    assert told.endswith(f"tiny (3 requests): {', '.join(ids[:3])}.\n")
    _hold(redis_db, held_requests("epoch", 2, {"g": ids}, behind=[]))
    told = run_command("neurons", "drain", "beast")
    assert told.endswith(f"{', '.join(ids[:8])} and 4 more.\n")
    redis_db.hset(keys.held_key("beast"), "g", b"no list")
    assert json.loads(run_command("neurons", "list", "--json"))[0]["requests"] == []
    assert run_command("neurons", "drain", "beast", "--now").endswith(", and is ended now.\n")
    run_command("neurons", "resume", "beast")
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert "once it is back: it is away now" in run_command("neurons", "drain", "beast")
    with pytest.raises(CommandError, match="stop it before"):
        run_command("neurons", "remove", "beast")


def test_an_alias_from_first_to_last(run_command: RunCommand, model) -> None:
    services.catalogue_model_create(actor=COMMAND, name="large", source="pypi:large")
    run_command("aliases", "add", "openai/gpt", "tiny")
    run_command("aliases", "change", "openai/gpt", "--model", "large")
    assert json.loads(run_command("aliases", "list", "--model", "large", "--json")) == [
        {"name": "openai/gpt", "model": "large"}
    ]
    assert "large" in run_command("aliases", "show", "openai/gpt")
    assert "would alias.delete" in run_command("aliases", "remove", "openai/gpt", "--dry-run")
    run_command("aliases", "remove", "openai/gpt")
    assert json.loads(run_command("aliases", "list", "--json")) == []


def test_jobs_and_the_audit_are_listed(run_command: RunCommand, model, beat, sent) -> None:
    beat()
    run_command("models", "load", "tiny", "--no-wait")
    (job,) = json.loads(
        run_command("jobs", "list", "--status", "pending", "--model", "tiny", "--json")
    )
    assert "beast" in run_command("jobs", "show", job["id"])
    LoadJob.objects.update(note="Moves from attic, where huge needs its room")
    assert "\ntiny on beast: Moves from attic, where huge" in run_command("status")
    assert "unload tiny on beast" in run_command("jobs", "cancel", job["id"])
    assert "model.load" in run_command("audit", "list", "--action", "model.load")
    assert json.loads(run_command("downloads", "list", "--json")) == []


def test_following_reports_each_change_once_and_fails_with_the_job() -> None:
    job: dict[str, Any] = {"id": "1", "kind": "load", "model": "tiny", "neuron": "beast"}
    job |= {"status": "pending", "progress_fraction": None, "finished_at": None}
    job |= dict.fromkeys(("note", "stage", "failure_message"), "")
    loading = job | {"status": "running", "stage": "weights", "progress_fraction": 0.5}
    failed = {"status": "failed", "failure_message": "needs 8 GB", "finished_at": "now"}
    looks = iter([job, loading, loading, loading | failed])
    server = SimpleNamespace(ask=lambda *_words: next(looks))
    lines: list[str] = []
    with pytest.raises(CommandError, match="needs 8 GB"):
        follow(server, [job], lines.append, sleep=lambda _: None)  # type: ignore[arg-type]
    assert lines == [
        "load tiny on beast: pending",
        "load tiny on beast: running weights 50%",
        "load tiny on beast: failed needs 8 GB",
    ]


def test_status_ends_with_1_while_something_is_wrong(run_command: RunCommand, beat, build) -> None:
    def wrong() -> str:
        with pytest.raises(SystemExit) as ended:
            run_command("status")
        assert ended.value.code == 1
        return run_command.out

    card = build.device(kind="cuda")
    beat(replicas=[build.replica(status=ReplicaStatus.FAILED)], devices=[card])
    assert "! tiny failed on beast" in wrong()
    beat(replicas=[build.replica()], devices=[card], stages=[build.stage()])
    shown = run_command("status")
    assert "ready" in shown and json_of(run_command, "status")["attention"] == []
    (row,) = (line for line in shown.splitlines() if line.startswith("large"))
    assert " ".join(row.split()) == "large beast 20 to 31 cuda:0 3.0 GiB attic ready"
    (held,) = json_of(run_command, "status")["neurons"][0]["held_stages"]
    assert (held["model"], held["engine_neuron"], held["last_layer"]) == ("large", "attic", 32)
    beat(devices=[card])
    assert "stage of" not in run_command("status")
    services.catalogue_model_create(actor=COMMAND, name="small", source="pypi:small")
    offered = run_command("models", "add", "huge", "pypi:huge", "--set", "min_device_vram_mb=48000")
    assert "huge is offered, and no host can run it: it needs a card of 46.9 GiB" in offered
    shown = wrong()
    assert "! no host can run huge: it needs a card of 46.9 GiB" in shown
    assert "Loaded on request: small\n" in shown
