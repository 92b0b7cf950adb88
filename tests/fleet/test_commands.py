"""The fleet's commands: with this machine's database, and over REST; the same words either way."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from io import BytesIO, StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from fleet import services
from fleet.management.chat_client import ChatClient
from fleet.management.following import follow
from fleet.models import CatalogueModel
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.api_support import key_api
from tests.fleet.hub.conftest import hub

__all__ = ["hub"]
pytestmark = pytest.mark.django_db(transaction=True)

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
    key = key_api("fleet:read", "fleet:write").key
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


@pytest.fixture
def beat(publish):
    def beat(**changes: Any) -> None:
        services.heartbeat_record(heartbeat=publish(**changes))

    return beat


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
    )
    model = CatalogueModel.objects.get()
    assert (model.max_context_tokens, model.pinned_on) == (64, ["beast"])
    assert "unloaded" in told("models", "list")
    told("models", "load", "tiny", "--no-wait")
    assert "load tiny on beast: pending" in told.out
    beat(replicas=[build.replica()])
    (listed,) = json.loads(told("models", "list", "--json"))
    assert listed["replicas"] == [{"neuron": "beast", "status": "ready", "is_outdated": False}]
    shown = told("models", "show", "tiny")
    assert "max_context_tokens" in shown and "beast" in shown
    assert "unload tiny on beast" in told("models", "unload", "tiny", "--no-wait")
    told("models", "remove", "tiny")
    assert not CatalogueModel.objects.exists()
    actors = {str(actor).partition(":")[0] for (actor,) in AuditEntry.objects.values_list("actor")}
    assert actors <= {"command", "key"}


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
    assert "dense is offered" in told("models", "add", "huggingface:org/dense")


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
        (("huggingface:org/strange",), "does not run safetensors: .*mamba"),
        (("huggingface:org/tiny-gguf", "--file", "Q2_K"), "choose one of Q4_K_M, Q8_0"),
        (("huggingface:org/nothing",), "no repository org/nothing"),
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


def test_neurons(told: Told, beat, redis_db) -> None:
    beat()
    assert "a processor" in told("neurons", "list")
    told("neurons", "drain", "beast")
    beat()
    assert json.loads(told("neurons", "list", "--json"))[0]["status"] == "draining"
    told("neurons", "resume", "beast")
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


def test_the_catalogue_is_exported_and_imported(told: Told, tmp_path) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    file = tmp_path / "models.toml"
    file.write_text(told("models", "export").replace("pypi:tiny", "pypi:other"))
    assert "Nothing is changed yet" in told("models", "import", str(file))
    assert CatalogueModel.objects.get().source == "pypi:tiny"
    told("models", "import", str(file), "--apply")
    assert CatalogueModel.objects.get().source == "pypi:other"
    assert "Nothing to change" in told("models", "import", str(file))


def test_invitations_are_made_where_redis_is() -> None:
    with pytest.raises(CommandError, match="where the gateway runs"):
        call_command("neurons", "invite", "beast", "--url", URL)


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


def test_a_chat_is_written_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(**values: Any) -> bytes:
        return b"data: " + json.dumps(values).encode() + b"\n"

    reader = {"id": "bge", "loaded": True, "capabilities": ["embeddings"]}
    cold, warm = {"id": "cold", "capabilities": None}, {"id": "warm", "loaded": True}
    models = json.dumps({"data": [reader, cold, warm]}).encode()
    chat = [
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        b"\n",
        event(choices=[{"delta": {"content": "Hel"}}]),
        event(choices=[{"delta": {"content": "lo"}}]),
        event(choices=[], usage={"completion_tokens": 8}),
        b"data: [DONE]\n",
    ]
    asked: list[urllib.request.Request] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> BytesIO:
        asked.append(request)
        return BytesIO(models if request.full_url.endswith("/models") else b"".join(chat))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    client = ChatClient(URL, "hx-1")
    assert client.model_to_ask() == "warm"
    written: list[str] = []
    seconds = iter([0.0, 1.0, 3.0])
    answer = client.ask(
        "warm", [{"role": "user", "content": "Hi"}], written.append, clock=lambda: next(seconds)
    )
    assert (written, answer.text, answer.tokens_per_s) == (["Hel", "lo"], "Hello", 4.0)
    assert asked[-1].headers["Authorization"] == "Bearer hx-1"
    monkeypatch.setattr("sys.stdin", StringIO("Hi"))
    out, err = StringIO(), StringIO()
    call_command("chat", "--url", URL, stdout=out, stderr=err)
    assert (out.getvalue(), "8 tokens" in err.getvalue()) == ("Hello\n", True)


def test_models_that_only_read_are_not_talked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    models = json.dumps({"data": [{"id": "bge", "capabilities": ["embeddings"]}]}).encode()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_options: BytesIO(models))
    with pytest.raises(CommandError, match="embeddings"):
        ChatClient(URL, None).model_to_ask()


def test_a_chats_refusal_is_one_line() -> None:
    with pytest.raises(CommandError, match="serve running"):
        call_command("chat", "--url", "http://127.0.0.1:1")
