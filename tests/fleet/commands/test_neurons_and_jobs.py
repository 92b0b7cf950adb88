"""Commands with this machine's database and over REST, and what they refuse in one line."""

from __future__ import annotations

import json
import urllib.error
from http.client import IncompleteRead
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from fleet import services
from fleet.api.catalogue import Catalogue
from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.live.snapshot import FleetSnapshot
from fleet.management.backend import follow, refusal_of
from fleet.models import CatalogueModel, LoadJob
from inference import proxies
from inference.protocol import keys
from inference.protocol.delivery import encode_held_requests, held_requests
from inference.protocol.heartbeat import ReplicaStatus
from inference.request_ids import new_request_id
from metering.models import AuditEntry
from tests.fleet.commands.conftest import RunCommand
from tests.fleet.conftest import GIB, offer

pytestmark = pytest.mark.django_db(transaction=True)
URL = "http://fleet.example:31313"


def json_of(run_command: RunCommand, words: str) -> Any:
    return json.loads(run_command(*words.split(), "--json"))


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


def test_neurons(run_command: RunCommand, beat, build, redis_db) -> None:
    def hold(held: Any) -> None:
        redis_db.delete(keys.held_key("beast"))
        packed = {name: encode_held_requests(one) for name, one in held.items()}
        redis_db.hset(keys.held_key("beast"), mapping=packed)

    def drain(*words: str) -> str:
        return run_command("neurons", "drain", "beast", *words)

    sizes = {"total_memory_bytes": 6 * GIB, "installed_memory_bytes": 16 * GIB}
    beat(devices=[build.device(**sizes)])
    assert "cpu" in run_command("neurons", "show", "beast")
    for command in (["status"], ["neurons", "list"]):
        assert "of 6.0 GiB (limit, of 16.0 GiB)" in run_command(*command)
    (neuron,) = json_of(run_command, "neurons list")
    assert neuron["devices"][0]["installed_memory_bytes"] == 16 * GIB
    assert "click" in run_command("neurons", "policy", "--admission", "click")
    assert "click" in run_command("neurons", "policy")
    assert drain().endswith("; nothing runs there now.\n")
    beat()
    assert json_of(run_command, "neurons list")[0]["status"] == "draining"
    replicas = [
        build.replica(stats=build.stats(in_flight=2, queue_depth=1)),
        build.replica(model="new", status=ReplicaStatus.LOADING),
        build.replica(model="idle"),
    ]
    beat(replicas=replicas)
    assert "; at work there now: new (loading), tiny (3 requests).\n" in drain()
    assert drain("--within", "60").endswith("tiny (3 requests), and is ended after 60 s.\n")
    ids = [new_request_id(1_000 + number) for number in range(12)]
    hold(held_requests("epoch", 1, {"g": ids[:2], "h": [ids[2], "\x1b[2Jevil"]}, behind=["i"]))
    assert json_of(run_command, "neurons list")[0]["requests"] == ids[:3]
    assert drain().endswith(f"tiny (3 requests): {', '.join(ids[:3])}.\n")
    hold(held_requests("epoch", 2, {"g": ids}, behind=[]))
    assert drain().endswith(f"{', '.join(ids[:8])} and 4 more.\n")
    redis_db.hset(keys.held_key("beast"), "g", b"no list")
    assert json_of(run_command, "neurons list")[0]["requests"] == []
    assert drain("--now").endswith(", and is ended now.\n")
    run_command("neurons", "resume", "beast")
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert "once it is back: it is away now" in drain()
    with pytest.raises(CommandError, match="stop it before"):
        run_command("neurons", "remove", "beast")


def test_an_alias_from_first_to_last(run_command: RunCommand, model) -> None:
    offer("large")
    run_command("aliases", "add", "openai/gpt", "tiny")
    run_command("aliases", "change", "openai/gpt", "--model", "large")
    (alias,) = json_of(run_command, "aliases list --model large")
    assert alias == {"name": "openai/gpt", "model": "large"}
    assert "large" in run_command("aliases", "show", "openai/gpt")
    assert "would alias.delete" in run_command("aliases", "remove", "openai/gpt", "--dry-run")
    run_command("aliases", "remove", "openai/gpt")
    assert json_of(run_command, "aliases list") == []


def test_jobs_and_the_audit_are_listed(run_command: RunCommand, model, beat, sent) -> None:
    beat()
    run_command("models", "load", "tiny", "--no-wait")
    (job,) = json_of(run_command, "jobs list --status pending --model tiny")
    assert "beast" in run_command("jobs", "show", job["id"])
    LoadJob.objects.update(note="Moves from attic, where huge needs its room")
    assert "\ntiny on beast: Moves from attic, where huge" in run_command("status")
    assert "unload tiny on beast" in run_command("jobs", "cancel", job["id"])
    assert "model.load" in run_command("audit", "list", "--action", "model.load")
    assert json_of(run_command, "downloads list") == []


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
    offer("small")
    offered = run_command("models", "add", "huge", "pypi:huge", "--set", "min_device_vram_mb=48000")
    assert "huge is offered, and no host can run it: it needs a card of 46.9 GiB" in offered
    shown = wrong()
    assert "! no host can run huge: it needs a card of 46.9 GiB" in shown


def test_a_model_from_add_to_remove(run_command: RunCommand, beat, build, sent) -> None:
    beat()
    settings = ("max_context_tokens=64", "pinned_on=beast", "quantization=q5k")
    run_command("models", "add", "tiny", "pypi:tiny", *(f"--set={one}" for one in settings))
    model = CatalogueModel.objects.get()
    assert (model.max_context_tokens, model.pinned_on) == (64, ["beast"])
    assert model.quantization == "q5"
    run_command("models", "load", "tiny", "--no-wait")
    assert "load tiny on beast: pending" in run_command.out
    beat(replicas=[build.replica()])
    (listed,) = json_of(run_command, "models list")
    assert listed["replicas"] == [{"neuron": "beast", "status": "ready", "is_outdated": False}]
    assert "unloaded" not in run_command("models", "list")
    assert "max_context_tokens" in run_command("models", "show", "tiny")
    assert "unload tiny on beast" in run_command("models", "unload", "tiny", "--no-wait")
    run_command("models", "change", "tiny", "--set", "max_context_tokens=32", "--set", "pinned_on=")
    model.refresh_from_db()
    assert (model.max_context_tokens, model.pinned_on) == (32, [])
    assert "would model.delete tiny" in run_command("models", "remove", "tiny", "--dry-run")
    run_command("models", "remove", "tiny")
    assert not CatalogueModel.objects.exists()
    actors = {str(actor).partition(":")[0] for (actor,) in AuditEntry.objects.values_list("actor")}
    assert actors <= {"command", "key"}


def test_an_empty_value_leaves_a_setting_open_or_sets_its_default() -> None:
    wanted = ("device=cpu", "min_replicas=1", "enabled=false", "max_prefill_s=60")
    call_command("models", "add", "tiny", "pypi:tiny", *(f"--set={one}" for one in wanted))
    empty = [f"--set={name}=" for name in SETTINGS if name != "source"]
    call_command("models", "change", "tiny", *empty)
    settings = CatalogueModel.objects.get().settings()
    unset = {name: getattr(settings, name) for name in DEFAULTS}
    assert unset == DEFAULTS | {"max_prefill_s": None}
    with pytest.raises(CommandError, match="This is needed"):
        call_command("models", "change", "tiny", "--set", "source=")


@pytest.mark.usefixtures("hub")
def test_a_model_is_chosen_of_what_a_repository_holds(run_command, beat, monkeypatch) -> None:
    beat()
    assert "org/tiny-gguf" in run_command("models", "search", "tiny")
    assert "Nothing is called" in run_command("models", "search", "no such thing")
    with pytest.raises(CommandError) as refused:
        run_command("models", "add", "huggingface:org/tiny-gguf")
    for words in ("Choose one with --file", "Q4_K_M", "3.7 GiB", "beast: fits", "no room now"):
        assert words in str(refused.value)
    assert not CatalogueModel.objects.exists()
    run_command("models", "add", "huggingface:org/tiny-gguf", "--file", "q8_0", "--pinned")
    first = CatalogueModel.objects.get()
    assert (first.name, first.file, first.pinned) == ("tiny-q8_0", "Q8_0", True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "1")
    assert "tiny-q4_k_m is offered" in run_command("models", "add", "huggingface:org/tiny-gguf")
    assert "Q8_0" in run_command.err
    assert CatalogueModel.objects.get(name="tiny-q4_k_m").vram_mb == 4197
    assert "dense is offered" in run_command("models", "add", "org/dense")
    run_command("models", "add", "again", "org/dense")
    assert CatalogueModel.objects.get(name="again").source == "huggingface:org/dense"
    for file in ("q4_k_m+none", "Q8_0"):  # without or with its mmproj file
        run_command("models", "add", "huggingface:org/images-gguf", "--file", file)
    found = {one.name: (one.file, one.vram_mb) for one in CatalogueModel.objects.all()}
    assert found["images-q4_k_m"] == ("Q4_K_M+none", 4197)
    assert found["images-q8_0"] == ("Q8_0", 9442)


@pytest.mark.usefixtures("hub", "publish")
def test_what_cannot_be_chosen_names_the_reason(run_command: RunCommand) -> None:
    for words, reason in (
        ("huggingface:org/strange", "does not run safetensors: .*reformer"),
        ("huggingface:org/tiny-gguf --file Q2_K", "choose one of Q4_K_M, Q8_0"),
        ("huggingface:org/nothing", "no repository org/nothing"),
        ("huggingface:org/gated", "^org/gated is gated: it needs a token that was granted"),
        ("huggingface:tiny-gguf", "not like huggingface:org/name"),
        ("huggingface:org/images-gguf", "reads images by mmproj-F16"),
        ("huggingface:org/images-gguf --file mmproj-F16.gguf", "not there: choose one of Q4_K_M"),
        ("tiny", "name its source too"),
        ("huggingface:org/tiny-gguf --base tiny", "an adapter is given a name"),
    ):
        with pytest.raises(CommandError, match=reason):
            run_command("models", "add", *words.split())


def test_the_catalogue_is_exported_and_imported(run_command: RunCommand, tmp_path) -> None:
    offer()
    file = tmp_path / "models.toml"
    file.write_text(run_command("models", "export").replace("pypi:tiny", "pypi:other"))
    assert "Nothing is changed yet" in run_command("models", "import", str(file))
    assert CatalogueModel.objects.get().source == "pypi:tiny"
    run_command("models", "import", str(file), "--apply")
    assert CatalogueModel.objects.get().source == "pypi:other"
    assert "Nothing to change" in run_command("models", "import", str(file))


def test_what_is_wrong_is_one_line_and_an_exit_code(run_command: RunCommand, beat) -> None:
    beat()
    for words, code, reason in (
        ("models show nothing", 3, ""),
        ("neurons remove beast", 4, ""),
        ("aliases change nothing", 2, ""),
        ("models change nothing --set pinned=perhaps", 1, ""),
        ("models add tiny llama3", 1, "source: 'llama3' does not start with"),
        ("models add tiny pypi:x --set colour=red", None, "is not SETTING=VALUE"),
        ("models add tiny pypi:x --set max_replicas=many", None, "whole number"),
        ("models load nobody", 3, "There is no model named 'nobody'"),
        ("neurons drain nobody", 3, "There is no neuron named 'nobody'"),
        ("models import /nowhere.toml", None, "cannot be read"),
    ):
        with pytest.raises(CommandError) as refused:
            run_command(*words.split())
        assert reason in str(refused.value)
        assert code is None or refused.value.returncode == code, words


def test_a_server_that_is_not_there_and_a_key_without_one() -> None:
    asking = ("chat", "status", "deploy_gate --remember /dev/null")
    wrong = ("http://a:port", "http://:1", "box:31313", "http://[::1", "http://a:70000")
    for words, reason in (
        ("models list --url http://127.0.0.1:1", "does not answer"),
        ("models list --url gpu-box", "is not like http"),
        ("models list --key hx-1", "the caller's key for --url"),
        ("requests list --key hx-1", "rows of one key: --on-key"),
        *((f"{command} --url {url}", "is not like http") for command in asking for url in wrong),
        *((f"{command} --url http://..:1", "does not answer") for command in asking),
    ):
        with pytest.raises(CommandError, match=reason):
            call_command(*words.split())


def test_a_server_that_answers_otherwise_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ("status", "models list", "neurons list", "logs beast tiny")
    for words in (*commands, "deploy_gate --remember /dev/null"):
        for answer in (b"<!doctype html>", b'{"data": [7]}', b"[]", b"null"):
            monkeypatch.setattr(proxies, "open_url", lambda *_, _body=answer, **__: BytesIO(_body))
            with pytest.raises(CommandError, match="does not answer as helexa"):
                call_command(*words.split(), "--url", URL)


def test_a_refusal_is_reported_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, words in (
        ({"status": 403, "detail": "This needs a scope.", "param": None}, "This needs a scope."),
        ({"detail": "is none", "param": "status"}, "status: is none"),
        ({"error": {"message": "The API key is not valid."}}, "The API key is not valid."),
        ({"error": "no such model"}, "no such model"),
        ("<!DOCTYPE html>", "the server answers 404"),
        ([], "the server answers 404"),
    ):
        body = BytesIO((content if isinstance(content, str) else json.dumps(content)).encode())
        refused = urllib.error.HTTPError(URL, 404, "", {}, body)  # type: ignore[arg-type]
        assert refusal_of(refused) == words
    refused.read = Mock(side_effect=IncompleteRead(b"{"))  # type: ignore[method-assign]
    assert refusal_of(refused) == "the server answers 404"

    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("unable to open database file")

    monkeypatch.setattr(Catalogue, "list", away)
    with pytest.raises(CommandError, match=r"does not answer.*HELEXA_DATA_DIR"):
        call_command("models", "list")
