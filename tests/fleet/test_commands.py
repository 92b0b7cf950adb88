"""The fleet's commands: with this machine's database, and over REST; the same words either way."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import IncompleteRead
from io import BytesIO, StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from fleet import services
from fleet.api.catalogue import CatalogueView
from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.live.snapshot import FleetSnapshot
from fleet.management.backend import refusal_of, refusal_text
from fleet.management.following import follow
from fleet.models import CatalogueModel
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.api_support import key_api
from tests.fleet.hub.conftest import hub

__all__ = ["hub"]
pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
URL = "http://fleet.example:31313"


class RunCommand:
    """Runs a command; ``out`` and ``err`` are what it wrote."""

    def __init__(self, *extra: str) -> None:
        self._extra = extra

    def __call__(self, *words: str) -> str:
        out, err = StringIO(), StringIO()
        try:
            call_command(*words, *self._extra, stdout=out, stderr=err)
        finally:
            self.err = err.getvalue()
            self.out = out.getvalue()
        return self.out


@pytest.fixture(params=["local", "rest"])
def run_command(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> RunCommand:
    if request.param == "local":
        return RunCommand()
    settings.ALLOWED_HOSTS = ["testserver"]
    key = key_api("fleet:read", "fleet:write", "accounts:read").key
    assert key is not None

    def urlopen(asked: urllib.request.Request, timeout: float) -> Any:
        """The server, without a socket."""
        assert asked.full_url.startswith(URL)
        response = Client().generic(
            asked.get_method(),
            asked.full_url.removeprefix(URL),
            asked.data or b"",
            content_type="application/json",
            headers={"authorization": asked.headers["Authorization"]},
        )
        body = BytesIO(response.content)
        if response.status_code >= 400:
            raise urllib.error.HTTPError(URL, response.status_code, "", {}, body)  # type: ignore[arg-type]
        return body

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return RunCommand("--url", URL, "--key", key)


def test_a_model_from_add_to_remove(run_command: RunCommand, beat, build, sent) -> None:
    beat()
    run_command(
        "models",
        "add",
        "tiny",
        "pypi:tiny",
        "--set",
        "max_context_tokens=64",
        "--set",
        "pinned_on=beast",
        "--set",
        "quantization=q5k",
    )
    model = CatalogueModel.objects.get()
    assert (model.max_context_tokens, model.pinned_on) == (64, ["beast"])
    assert model.quantization == "q5"
    assert "unloaded" in run_command("models", "list")
    run_command("models", "load", "tiny", "--no-wait")
    assert "load tiny on beast: pending" in run_command.out
    beat(replicas=[build.replica()])
    (listed,) = json.loads(run_command("models", "list", "--json"))
    assert listed["replicas"] == [{"neuron": "beast", "status": "ready", "is_outdated": False}]
    shown = run_command("models", "show", "tiny")
    assert "max_context_tokens" in shown and "beast" in shown
    assert "unload tiny on beast" in run_command("models", "unload", "tiny", "--no-wait")
    run_command("models", "change", "tiny", "--set", "max_context_tokens=32", "--set", "pinned_on=")
    model.refresh_from_db()
    assert (model.max_context_tokens, model.pinned_on) == (32, [])
    assert "would model.delete tiny" in run_command("models", "remove", "tiny", "--dry-run")
    assert json.loads(run_command("models", "list", "--pinned", "true", "--json")) == []
    run_command("models", "remove", "tiny")
    assert not CatalogueModel.objects.exists()
    actors = {str(actor).partition(":")[0] for (actor,) in AuditEntry.objects.values_list("actor")}
    assert actors <= {"command", "key"}


def test_an_empty_value_leaves_a_setting_open_or_sets_its_default() -> None:
    call_command(
        "models", "add", "tiny", "pypi:tiny", "--set", "device=cpu", "--set", "min_replicas=1"
    )
    call_command("models", "change", "tiny", "--set", "enabled=false", "--set", "max_prefill_s=60")
    empty = [f"--set={name}=" for name in SETTINGS if name != "source"]
    call_command("models", "change", "tiny", *empty)
    settings = CatalogueModel.objects.get().settings()
    unset = {name: getattr(settings, name) for name in DEFAULTS}
    assert unset == DEFAULTS | {"max_prefill_s": None}
    with pytest.raises(CommandError, match="This is needed"):
        call_command("models", "change", "tiny", "--set", "source=")


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
    assert "unload tiny on beast" in run_command("jobs", "cancel", job["id"])
    assert "model.load" in run_command("audit", "list", "--action", "model.load")
    assert json.loads(run_command("downloads", "list", "--json")) == []


def test_neurons_are_shown_and_the_policy_changes(run_command: RunCommand, beat) -> None:
    beat()
    assert "cpu" in run_command("neurons", "show", "beast")
    assert json.loads(run_command("neurons", "list", "--status", "away", "--json")) == []
    assert "automatic" in run_command("neurons", "policy")
    assert "click" in run_command("neurons", "policy", "--admission", "click")
    assert "HELEXA_DATA_DIR" in run_command("settings", "list")
    assert "HELEXA_DATA_DIR" in run_command("settings", "show", "HELEXA_DATA_DIR")


def test_a_host_is_invited_here_or_at_a_server(run_command: RunCommand, monkeypatch) -> None:
    monkeypatch.setattr("fleet.services.invitations._ensure_redis_can", lambda: None)
    monkeypatch.setattr("fleet.services.invitations.redis_users_apply", lambda: None)
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=False, certificate="")
    assert "neuron --join hx1." in run_command("neurons", "invite", "beast")
    assert "beast" in run_command("neurons", "invitations")
    assert "invited_by" in run_command("neurons", "invitation", "beast")
    with pytest.raises(CommandError, match="'nobody' has no invitation"):
        run_command("neurons", "invitation", "nobody")
    assert "would neuron.revoke beast" in run_command("neurons", "revoke", "beast", "--dry-run")
    assert "beast can reach Redis no more" in run_command("neurons", "revoke", "beast")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("models", "show", "nothing"), 3),
        (("neurons", "remove", "beast"), 4),
        (("aliases", "change", "nothing"), 2),
        (("accounts", "list"), 0),
        (("models", "change", "nothing", "--set", "pinned=perhaps"), 1),
    ],
)
def test_exit_codes(run_command: RunCommand, beat, words: tuple[str, ...], code: int) -> None:
    beat()
    try:
        run_command(*words)
    except CommandError as error:
        assert error.returncode == code
    else:
        assert code == 0


@pytest.mark.usefixtures("hub")
def test_a_model_is_chosen_of_what_a_repository_holds(
    run_command: RunCommand, beat, monkeypatch
) -> None:
    beat()
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


@pytest.mark.usefixtures("hub")
def test_the_hub_is_searched(run_command: RunCommand) -> None:
    assert "org/tiny-gguf" in run_command("models", "search", "tiny")
    (found,) = json.loads(run_command("models", "search", "tiny", "--json"))
    assert (found["name"], found["is_gated"]) == ("org/tiny-gguf", False)
    assert "Nothing is called" in run_command("models", "search", "no such thing")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("huggingface:org/strange",), "does not run safetensors: .*reformer"),
        (("huggingface:org/tiny-gguf", "--file", "Q2_K"), "choose one of Q4_K_M, Q8_0"),
        (("huggingface:org/nothing",), "no repository org/nothing"),
        (("huggingface:org/gated",), "^org/gated is gated: it needs a token that was granted"),
        (("huggingface:tiny-gguf",), "not like huggingface:org/name"),
        (("huggingface:org/tiny/q4",), "not like huggingface:org/name"),
        (("tiny",), "name its source too"),
        (("huggingface:org/tiny-gguf", "--base", "tiny"), "an adapter is given a name"),
    ],
)
def test_what_cannot_be_chosen_names_the_reason(
    run_command: RunCommand, publish, words, reason: str
) -> None:
    publish()
    with pytest.raises(CommandError, match=reason):
        run_command("models", "add", *words)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("models", "add", "tiny", "llama3"), "source: 'llama3' does not start with"),
        (("models", "add", "tiny", "pypi:x", "--set", "colour=red"), "is not SETTING=VALUE"),
        (("models", "add", "tiny", "pypi:x", "--set", "max_replicas=many"), "whole number"),
        (("models", "show", "nobody"), "There is no model named 'nobody'"),
        (("models", "load", "nobody"), "There is no model named 'nobody'"),
        (("neurons", "drain", "nobody"), "There is no neuron named 'nobody'"),
        (("models", "import", "/nowhere.toml"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(
    run_command: RunCommand, publish, words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError, match=reason):
        run_command(*words)


def test_neurons(run_command: RunCommand, beat, build, redis_db) -> None:
    beat()
    assert "a processor" in run_command("neurons", "list")
    assert run_command("neurons", "drain", "beast") == (
        "beast takes no more loads, and requests only for what nothing else can serve; "
        "nothing runs there now.\n"
    )
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
    run_command("neurons", "resume", "beast")
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert "once it is back: it is away now" in run_command("neurons", "drain", "beast")
    with pytest.raises(CommandError, match="stop it before"):
        run_command("neurons", "remove", "beast")


def test_status_ends_with_1_while_something_is_wrong(run_command: RunCommand, beat, build) -> None:
    with pytest.raises(SystemExit) as ended:
        beat(replicas=[build.replica(status=ReplicaStatus.FAILED)])
        run_command("status")
    assert ended.value.code == 1
    assert "! tiny failed on beast" in run_command.out
    beat(replicas=[build.replica()])
    assert "ready" in run_command("status")
    assert json.loads(run_command("status", "--json"))["attention"] == []


def test_a_device_shows_the_operators_limit_and_its_own_size(
    run_command: RunCommand, beat, build
) -> None:
    beat(devices=[build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)])
    for command in (["status"], ["neurons", "list"]):
        assert "of 6.0 GiB (limit, of 16.0 GiB)" in run_command(*command)
    (neuron,) = json.loads(run_command("neurons", "list", "--json"))
    assert neuron["devices"][0]["installed_memory_bytes"] == 16 * GIB


def test_status_does_not_promise_a_model_that_no_host_can_run(
    run_command: RunCommand, beat
) -> None:
    beat()
    services.catalogue_model_create(actor=COMMAND, name="small", source="pypi:small")
    offered = run_command("models", "add", "huge", "pypi:huge", "--set", "min_device_vram_mb=48000")
    assert "huge is offered, and no host can run it: it needs a card of 46.9 GiB" in offered
    with pytest.raises(SystemExit) as ended:
        run_command("status")
    assert ended.value.code == 1
    assert "! no host can run huge: it needs a card of 46.9 GiB" in run_command.out
    assert "Loaded when somebody asks: small\n" in run_command.out


def test_the_catalogue_is_exported_and_imported(run_command: RunCommand, tmp_path) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    file = tmp_path / "models.toml"
    file.write_text(run_command("models", "export").replace("pypi:tiny", "pypi:other"))
    assert "Nothing is changed yet" in run_command("models", "import", str(file))
    assert CatalogueModel.objects.get().source == "pypi:tiny"
    run_command("models", "import", str(file), "--apply")
    assert CatalogueModel.objects.get().source == "pypi:other"
    assert "Nothing to change" in run_command("models", "import", str(file))


def test_a_server_that_is_not_there_and_a_key_without_one() -> None:
    with pytest.raises(CommandError, match="does not answer"):
        call_command("models", "list", "--url", "http://127.0.0.1:1")
    with pytest.raises(CommandError, match="is not like http"):
        call_command("models", "list", "--url", "gpu-box")
    with pytest.raises(CommandError, match="goes with --url"):
        call_command("models", "list", "--key", "hx-1")


def test_following_reports_each_change_once_and_fails_with_the_job() -> None:
    job = {
        "id": "1",
        "kind": "load",
        "model": "tiny",
        "neuron": "beast",
        "status": "pending",
        "note": "",
        "stage": "",
        "progress_fraction": None,
        "failure_message": "",
        "finished_at": None,
    }
    loading = job | {"status": "running", "stage": "weights", "progress_fraction": 0.5}
    failed = {"status": "failed", "failure_message": "needs 8 GB", "finished_at": "now"}
    looks = iter([job, loading, loading, loading | failed])

    class Server:
        def ask(self, method: str, path: str, body: Any = None) -> Any:
            return next(looks)

    lines: list[str] = []
    with pytest.raises(CommandError, match="needs 8 GB"):
        follow(Server(), [job], lines.append, sleep=lambda _: None)
    assert lines == [
        "load tiny on beast: pending",
        "load tiny on beast: running weights 50%",
        "load tiny on beast: failed needs 8 GB",
    ]


@pytest.mark.parametrize("answer", [b"<!doctype html>", b'{"data": [7]}', b"[]", b"null"])
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("models", "list"),
        ("neurons", "list"),
        ("logs", "beast", "tiny"),
        ("deploy_gate", "--remember", "/dev/null"),
    ],
)
def test_a_server_that_answers_otherwise_is_one_line(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], answer: bytes
) -> None:
    """Another version of ours, or no helexa at all."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_options: BytesIO(answer))
    with pytest.raises(CommandError, match="does not answer as helexa"):
        call_command(*words, "--url", URL)


@pytest.mark.parametrize(
    ("content", "run_command"),
    [
        (b'{"status": 403, "detail": "This needs a scope.", "param": null}', "This needs a scope."),
        (b'{"detail": "is none", "param": "status"}', "status: is none"),
        (b'{"error": {"message": "The API key is not valid."}}', "The API key is not valid."),
        (b'{"error": "no such model"}', "no such model"),
        (b"<!DOCTYPE html>", "the server answers 404"),
        (b"[]", "the server answers 404"),
    ],
)
def test_a_refusal_is_reported_in_its_own_words(content: bytes, run_command: str) -> None:
    assert refusal_text(404, content) == run_command


def test_a_refusal_that_breaks_off_is_one_as_well() -> None:
    class Broken(BytesIO):
        def read(self, *_: Any) -> bytes:
            raise IncompleteRead(b"{")

    refused = urllib.error.HTTPError(URL, 503, "", {}, Broken())  # type: ignore[arg-type]
    assert refusal_of(refused) == "the server answers 503"


@pytest.mark.parametrize("command", ["chat", "status", "deploy_gate"])
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:port", "http://:1", "gpu-box:31313", "http://[::1", "http://a:70000"]
)
def test_an_address_that_is_none_is_one_line(command: str, url: str) -> None:
    with pytest.raises(CommandError, match="is not like http"):
        call_command(command, "--url", url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/a b", "http://..:1"])
def test_an_address_that_cannot_be_asked_is_one_line(url: str) -> None:
    for words in (["chat"], ["status"], ["deploy_gate", "--remember", "/dev/null"]):
        with pytest.raises(CommandError, match="does not answer"):
            call_command(*words, "--url", url)


def test_a_database_that_is_not_there_yet_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("unable to open database file")

    monkeypatch.setattr(CatalogueView, "list", away)
    with pytest.raises(CommandError, match=r"does not answer.*HELEXA_DATA_DIR"):
        call_command("models", "list")
