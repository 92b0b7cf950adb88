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


class Told:
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
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Told:
    if request.param == "local":
        return Told()
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
    return Told("--url", URL, "--key", key)


def test_a_model_from_add_to_remove(told: Told, beat, build, sent) -> None:
    beat()
    told(
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
    assert "unloaded" in told("models", "list")
    told("models", "load", "tiny", "--no-wait")
    assert "load tiny on beast: pending" in told.out
    beat(replicas=[build.replica()])
    (listed,) = json.loads(told("models", "list", "--json"))
    assert listed["replicas"] == [{"neuron": "beast", "status": "ready", "is_outdated": False}]
    shown = told("models", "show", "tiny")
    assert "max_context_tokens" in shown and "beast" in shown
    assert "unload tiny on beast" in told("models", "unload", "tiny", "--no-wait")
    told("models", "change", "tiny", "--set", "max_context_tokens=32", "--set", "pinned_on=")
    model.refresh_from_db()
    assert (model.max_context_tokens, model.pinned_on) == (32, [])
    assert "would model.delete tiny" in told("models", "remove", "tiny", "--dry-run")
    assert json.loads(told("models", "list", "--pinned", "true", "--json")) == []
    told("models", "remove", "tiny")
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


def test_an_alias_from_first_to_last(told: Told, model) -> None:
    services.catalogue_model_create(actor=COMMAND, name="large", source="pypi:large")
    told("aliases", "add", "openai/gpt", "tiny")
    told("aliases", "change", "openai/gpt", "--model", "large")
    assert json.loads(told("aliases", "list", "--model", "large", "--json")) == [
        {"name": "openai/gpt", "model": "large"}
    ]
    assert "large" in told("aliases", "show", "openai/gpt")
    assert "would alias.delete" in told("aliases", "remove", "openai/gpt", "--dry-run")
    told("aliases", "remove", "openai/gpt")
    assert json.loads(told("aliases", "list", "--json")) == []


def test_jobs_and_the_audit_are_listed(told: Told, model, beat, sent) -> None:
    beat()
    told("models", "load", "tiny", "--no-wait")
    (job,) = json.loads(told("jobs", "list", "--status", "pending", "--model", "tiny", "--json"))
    assert "beast" in told("jobs", "show", job["id"])
    assert "unload tiny on beast" in told("jobs", "cancel", job["id"])
    assert "model.load" in told("audit", "list", "--action", "model.load")
    assert json.loads(told("downloads", "list", "--json")) == []


def test_neurons_are_shown_and_the_policy_changes(told: Told, beat) -> None:
    beat()
    assert "cpu" in told("neurons", "show", "beast")
    assert json.loads(told("neurons", "list", "--status", "away", "--json")) == []
    assert "automatic" in told("neurons", "policy")
    assert "click" in told("neurons", "policy", "--admission", "click")
    assert "HELEXA_DATA_DIR" in told("settings", "list")
    assert "HELEXA_DATA_DIR" in told("settings", "show", "HELEXA_DATA_DIR")


def test_a_host_is_invited_here_or_at_a_server(told: Told, monkeypatch) -> None:
    monkeypatch.setattr("fleet.services.invitations._ensure_redis_can", lambda: None)
    monkeypatch.setattr("fleet.services.invitations.redis_users_apply", lambda: None)
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=False, certificate="")
    assert "neuron --join hx1." in told("neurons", "invite", "beast")
    assert "beast" in told("neurons", "invitations")
    assert "invited_by" in told("neurons", "invitation", "beast")
    with pytest.raises(CommandError, match="'nobody' has no invitation"):
        told("neurons", "invitation", "nobody")
    assert "would neuron.revoke beast" in told("neurons", "revoke", "beast", "--dry-run")
    assert "beast can reach Redis no more" in told("neurons", "revoke", "beast")


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
def test_exit_codes(told: Told, beat, words: tuple[str, ...], code: int) -> None:
    beat()
    try:
        told(*words)
    except CommandError as error:
        assert error.returncode == code
    else:
        assert code == 0


@pytest.mark.usefixtures("hub")
def test_a_model_is_chosen_of_what_a_repository_holds(told: Told, beat, monkeypatch) -> None:
    beat()
    with pytest.raises(CommandError) as refused:
        told("models", "add", "huggingface:org/tiny-gguf")
    for words in ("Choose one with --file", "Q4_K_M", "3.7 GiB", "beast: fits", "no room now"):
        assert words in str(refused.value)
    assert not CatalogueModel.objects.exists()
    told("models", "add", "huggingface:org/tiny-gguf", "--file", "q8_0", "--pinned")
    first = CatalogueModel.objects.get()
    assert (first.name, first.file, first.pinned) == ("tiny-q8_0", "Q8_0", True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "1")
    assert "tiny-q4_k_m is offered" in told("models", "add", "huggingface:org/tiny-gguf")
    assert "Q8_0" in told.err
    assert CatalogueModel.objects.get(name="tiny-q4_k_m").vram_mb == 4197
    assert "dense is offered" in told("models", "add", "org/dense")
    told("models", "add", "again", "org/dense")
    assert CatalogueModel.objects.get(name="again").source == "huggingface:org/dense"


@pytest.mark.usefixtures("hub")
def test_the_hub_is_searched(told: Told) -> None:
    assert "org/tiny-gguf" in told("models", "search", "tiny")
    (found,) = json.loads(told("models", "search", "tiny", "--json"))
    assert (found["name"], found["is_gated"]) == ("org/tiny-gguf", False)
    assert "Nothing is called" in told("models", "search", "no such thing")


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
def test_what_cannot_be_chosen_says_why(told: Told, publish, words, reason: str) -> None:
    publish()
    with pytest.raises(CommandError, match=reason):
        told("models", "add", *words)


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
    told: Told, publish, words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError, match=reason):
        told(*words)


def test_neurons(told: Told, beat, build, redis_db) -> None:
    beat()
    assert "a processor" in told("neurons", "list")
    assert told("neurons", "drain", "beast") == (
        "beast takes no more loads, and requests only for what nothing else can serve; "
        "nothing runs there now.\n"
    )
    beat()
    assert json.loads(told("neurons", "list", "--json"))[0]["status"] == "draining"
    beat(
        replicas=[
            build.replica(stats=build.stats(in_flight=2, queue_depth=1)),
            build.replica(model="new", status=ReplicaStatus.LOADING),
            build.replica(model="idle"),
        ]
    )
    assert "; at work there now: new (loading), tiny (3 requests).\n" in told(
        "neurons", "drain", "beast"
    )
    told("neurons", "resume", "beast")
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert "once it is back: it is away now" in told("neurons", "drain", "beast")
    with pytest.raises(CommandError, match="stop it before"):
        told("neurons", "remove", "beast")


def test_status_ends_with_1_while_something_is_wrong(told: Told, beat, build) -> None:
    with pytest.raises(SystemExit) as ended:
        beat(replicas=[build.replica(status=ReplicaStatus.FAILED)])
        told("status")
    assert ended.value.code == 1
    assert "! tiny failed on beast" in told.out
    beat(replicas=[build.replica()])
    assert "ready" in told("status")
    assert json.loads(told("status", "--json"))["attention"] == []


def test_a_device_shows_the_operators_limit_and_its_own_size(told: Told, beat, build) -> None:
    beat(devices=[build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)])
    for command in (["status"], ["neurons", "list"]):
        assert "of 6.0 GiB (limit, of 16.0 GiB)" in told(*command)
    (neuron,) = json.loads(told("neurons", "list", "--json"))
    assert neuron["devices"][0]["installed_memory_bytes"] == 16 * GIB


def test_status_does_not_promise_a_model_that_no_host_can_run(told: Told, beat) -> None:
    beat()
    services.catalogue_model_create(actor=COMMAND, name="small", source="pypi:small")
    offered = told("models", "add", "huge", "pypi:huge", "--set", "min_device_vram_mb=48000")
    assert "huge is offered, and no host can run it: it needs a card of 46.9 GiB" in offered
    with pytest.raises(SystemExit) as ended:
        told("status")
    assert ended.value.code == 1
    assert "! no host can run huge: it needs a card of 46.9 GiB" in told.out
    assert "Loaded when somebody asks: small\n" in told.out


def test_the_catalogue_is_exported_and_imported(told: Told, tmp_path) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    file = tmp_path / "models.toml"
    file.write_text(told("models", "export").replace("pypi:tiny", "pypi:other"))
    assert "Nothing is changed yet" in told("models", "import", str(file))
    assert CatalogueModel.objects.get().source == "pypi:tiny"
    told("models", "import", str(file), "--apply")
    assert CatalogueModel.objects.get().source == "pypi:other"
    assert "Nothing to change" in told("models", "import", str(file))


def test_a_server_that_is_not_there_and_a_key_without_one() -> None:
    with pytest.raises(CommandError, match="does not answer"):
        call_command("models", "list", "--url", "http://127.0.0.1:1")
    with pytest.raises(CommandError, match="is not like http"):
        call_command("models", "list", "--url", "gpu-box")
    with pytest.raises(CommandError, match="goes with --url"):
        call_command("models", "list", "--key", "hx-1")


def test_following_tells_each_change_once_and_fails_with_the_job() -> None:
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
    ("content", "told"),
    [
        (b'{"status": 403, "detail": "This needs a scope.", "param": null}', "This needs a scope."),
        (b'{"detail": "is none", "param": "status"}', "status: is none"),
        (b'{"error": {"message": "The API key is not valid."}}', "The API key is not valid."),
        (b'{"error": "no such model"}', "no such model"),
        (b"<!DOCTYPE html>", "the server answers 404"),
        (b"[]", "the server answers 404"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(content: bytes, told: str) -> None:
    assert refusal_text(404, content) == told


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


def test_a_database_that_is_not_there_yet_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("unable to open database file")

    monkeypatch.setattr(CatalogueView, "list", away)
    with pytest.raises(CommandError, match=r"does not answer.*HELEXA_DATA_DIR"):
        call_command("models", "list")
