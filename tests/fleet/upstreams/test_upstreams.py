"""Upstreams as rows: by REST, by command and in the admin, with a key that nothing shows."""

from __future__ import annotations

import io
import json
import logging
import socket
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse

from fleet import services
from fleet.errors import UpstreamSecretError, UpstreamValueError
from fleet.models import Upstream
from fleet.upstreams.http import headers_of
from fleet.upstreams.probe import PAID_STEPS as PAID
from fleet.upstreams.secret import unseal
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.api.api_support import Api, key_api, need_keys
from tests.servers.fake_upstream import (
    Asked,
    FakeUpstream,
    Wire,
    chunk,
    message_end,
    message_start,
    usage,
)

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "sk-the-upstreams-own-secret-0123456789"
URL = "http://box:8000/v1"


@pytest.fixture
def api(settings: Any) -> Api:
    need_keys(settings)
    return key_api("fleet:read", "fleet:write")


def make(url: str = URL, key: str = SECRET, **values: Any) -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url=url, key=key, **values)


def run(*words: str) -> str:
    out = StringIO()
    call_command("upstreams", *words, stdout=out)
    return out.getvalue()


def everything_stored() -> str:
    """Every text of the upstreams' and the audit's tables."""
    with connection.cursor() as cursor:
        rows = []
        for table in ("fleet_upstream", "metering_auditentry"):
            cursor.execute(f"SELECT * FROM {table}")
            rows += cursor.fetchall()
    return repr(rows)


def test_a_key_is_kept_and_nothing_shows_it(
    api: Api, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    made = api.post("upstreams", {"name": "box", "url": f"{URL}/", "key": SECRET}, 201)
    assert (made["url"], made["has_key"], made["dialect"]) == (URL, True, "openai")
    row = Upstream.objects.get()
    assert unseal(row.sealed_secret, settings.SECRET_KEY) == SECRET
    shown = json.dumps([made, api.get("upstreams"), api.get("upstreams/box"), api.get("audit")])
    changed = api.patch("upstreams/box", {"key": SECRET + "2", "concurrency": 2})
    refused = api.patch("upstreams/box", {"key": SECRET + "\u00e4"}, 400)
    for text in (shown, json.dumps([changed, refused]), everything_stored(), caplog.text):
        assert SECRET not in text
    assert SECRET not in repr(row.entry()) + repr(row.__dict__)
    assert AuditEntry.objects.get(action="upstream.create").detail["key"] == "set"
    update = AuditEntry.objects.get(action="upstream.update")
    assert update.detail == {"concurrency": [64, 2], "key": "set"}
    assert api.patch("upstreams/box", {"key": ""})["has_key"] is False
    api.delete("upstreams/box")
    assert api.get("upstreams/box", 404)["code"] == "upstream_not_found"


def test_a_key_of_another_signing_key_is_refused_with_what_to_do() -> None:
    sealed = make().sealed_secret
    with pytest.raises(UpstreamSecretError, match="upstreams change NAME --key -"):
        unseal(sealed, "another signing key")
    with pytest.raises(UpstreamSecretError):
        unseal(sealed[:-4], "another signing key")


def test_a_key_is_sent_to_no_other_host(api: Api) -> None:
    make()
    for elsewhere in ("http://evil:8000/v1", "http://box:9/v1", "https://box:8000/v1"):
        refused = api.patch("upstreams/box", {"url": elsewhere}, 400)
        assert (refused["param"], refused["code"]) == ("url", "invalid_value")
    assert api.patch("upstreams/box", {"url": "http://box:8000/v2"})["url"].endswith("/v2")
    moved = api.patch("upstreams/box", {"url": "http://other/v1", "key": "sk-new"})
    assert moved["has_key"] is True


@each_case(
    ("field", "value"),
    [
        ("name", "Box One"),
        ("url", "box:8000"),
        ("url", "ftp://box/v1"),
        ("url", "http://user:secret@box/v1"),
        ("url", "http://box/v1?key=x"),
        ("dialect", "grpc"),
        ("concurrency", 0),
        ("token_timeout_s", 3601),
        ("proxy", "http://user:secret@proxy:3128"),
        ("ca_file", "ca.pem"),
        ("key", "two words"),
        ("leaves_network", "yes"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(api: Api, field: str, value: Any) -> None:
    body = {"name": "box", "url": URL, field: value}
    refused = api.post("upstreams", body, 400)
    assert refused["param"] == field
    assert "secret" not in refused["detail"] or field in ("key",)
    assert not Upstream.objects.exists()


def test_a_name_is_given_once() -> None:
    make()
    with pytest.raises(UpstreamValueError, match="already"):
        make()


def chats(asked: Asked, wire: Wire) -> None:
    """An endpoint that can do everything."""
    if asked.path == "/v1/models":
        wire.json(200, {"data": [{"id": "m", "max_model_len": 4096}]})
    elif asked.path == "/tokenize":
        llama_server = {"tokens": [1] if "content" in asked.json else []}
        wire.json(200, llama_server)
    elif asked.json.get("stream"):
        wire.stream([chunk({"content": "hello"}), chunk(finish="stop"), usage(5, 1)])
    elif "tools" in asked.json:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        wire.json(200, {"choices": [{"message": {"tool_calls": [call]}}]})
    else:
        wire.json(200, {"choices": [{"message": {"content": '{"number": 7}'}}]})


def test_the_commands(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=True)
    with FakeUpstream() as upstream:
        upstream.answer = chats
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
        added = run("add", "box", upstream.url, "--key", "-", "--leaves-network")
        assert "upstreams test box" in added
        shown = run("test", "box")
        works = {line.split()[0]: line.split()[1] for line in shown.splitlines() if "  " in line}
        probes = ("models", "stream", "tools", "schema", "images", "counting")
        assert {name: works[name] for name in probes} == dict.fromkeys(probes, "yes")
        assert "a chat's tokens, which clients ask for, it does not count" in shown
        sent = {asked.headers["authorization"] for asked in upstream.asked}
        assert sent == {f"Bearer {SECRET}"}
        assert "4,096" in run("show", "box")
        monkeypatch.setenv("BOX_KEY", "sk-another")
        run("change", "box", "--key-env", "BOX_KEY", "--leaves-network", "false")
        run("change", "box", "--endpoint", f"{upstream.origin}/v2")
        assert Upstream.objects.get().url.endswith("/v2")
        assert not Upstream.objects.get().leaves_network
        with pytest.raises(CommandError, match="NOT_SET_AT_ALL is not set"):
            run("change", "box", "--key-env", "NOT_SET_AT_ALL")
        run("remove", "box")
        assert not Upstream.objects.exists()


def claudes(asked: Asked, wire: Wire) -> None:
    """An endpoint of Anthropic's dialect that can do everything."""
    if asked.path.startswith("/v1/models"):
        wire.json(200, {"data": [{"id": "m", "max_input_tokens": 200_000, "max_tokens": 64_000}]})
    elif asked.path == "/v1/messages/count_tokens":
        wire.json(200, {"input_tokens": 8})
    elif asked.json.get("stream"):
        wire.events([message_start(), message_end("end_turn"), {"type": "message_stop"}])
    elif "tools" in asked.json:
        assert asked.json["tool_choice"] == {"type": "any"}
        wire.json(200, {"content": [{"type": "tool_use", "name": "report_number", "input": {}}]})
    else:
        wire.json(200, {"content": [{"type": "text", "text": '{"number": 7}'}]})


def ollamas(asked: Asked, wire: Wire) -> None:
    """An endpoint of Ollama's dialect that can do everything."""
    if asked.path == "/api/tags":
        wire.json(200, {"models": [{"name": "m", "model": "m"}]})
    elif asked.json["stream"]:
        line = {"message": {"content": "hello"}, "done": True, "eval_count": 1}
        wire.whole(200, json.dumps(line).encode(), "application/x-ndjson")
    elif "tools" in asked.json:
        call = {"function": {"name": "report_number", "arguments": {"number": 7}}}
        wire.json(200, {"message": {"tool_calls": [call]}, "done": True})
    else:
        wire.json(200, {"message": {"content": '{"number": 7}'}, "done": True})


@pytest.mark.parametrize(
    ("dialect", "endpoint", "does_not_work"),
    [("anthropic", claudes, set()), ("ollama", ollamas, {"counting"})],
)
def test_every_dialect_is_tested(
    api: Api, dialect: str, endpoint: Any, does_not_work: set[str]
) -> None:
    with FakeUpstream() as upstream:
        upstream.answer = endpoint
        probes = probes_of(api, upstream.origin, dialect=dialect)
        assert {name for name in probes if not probes[name]["works"]} == does_not_work
        assert probes["stream"]["detail"] == "with usage"
        assert api.get("upstreams/box")["models"][0]["id"] == "m"
        upstream.answer = lambda asked, wire: (
            endpoint(asked, wire) if asked.method == "GET" else wire.json(400, {"error": "no"})
        )
        refused = probes_of(api, upstream.origin, dialect=dialect)
        assert [name for name in refused if refused[name]["works"]] == ["models"]
        upstream.answer = lambda asked, wire: (
            endpoint(asked, wire) if asked.method == "GET" else wire.json(200, {"x": 1})
        )
        wrong = probes_of(api, upstream.origin, dialect=dialect)
        assert [name for name in wrong if wrong[name]["works"]] == ["models"]


def probes_of(api: Api, url: str, **values: Any) -> dict[str, Any]:
    Upstream.objects.all().delete()
    make(url, **values)
    return {one["what"]: one for one in api.post("upstreams/box/test", {}, 200)["probes"]}


def test_what_does_not_work_is_reported_without_the_endpoints_words(api: Api) -> None:
    def refuses(asked: Asked, wire: Wire) -> None:
        if asked.path == "/v1/models":
            wire.json(200, {"data": [{"id": "m"}]})
        else:
            wire.json(400, {"error": {"message": f"no: {asked.headers['authorization']}"}})

    with FakeUpstream() as upstream:
        upstream.answer = refuses
        probes = probes_of(api, upstream.url)
    assert probes["models"]["works"] is True
    free = set(probes) - {"models", *PAID}
    assert {probes[name]["works"] for name in free} == {False}
    assert "400" in probes["tools"]["detail"]
    assert SECRET not in json.dumps(probes)


def test_a_list_that_is_redirected_endless_or_refused(api: Api) -> None:
    def redirect(asked: Asked, wire: Wire) -> None:
        wire.json(302, {}, location="http://169.254.169.254/latest/meta-data")

    def endless(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        while True:
            wire.part(b"x" * 65536)

    def refused(asked: Asked, wire: Wire) -> None:
        wire.json(401, {"error": asked.headers["authorization"]})

    found = {}
    for answer in (redirect, endless, refused):
        with FakeUpstream() as upstream:
            upstream.answer = answer
            found[answer] = probes_of(api, upstream.url)["models"]["detail"]
            assert len(upstream.asked) == 1
    assert "redirect" in found[redirect]
    assert "more than" in found[endless]
    assert "does not accept the key" in found[refused]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    unreachable = probes_of(api, f"http://127.0.0.1:{port}/v1")
    assert "cannot be reached" in unreachable["models"]["detail"]
    assert unreachable["stream"]["works"] is None
    missing = probes_of(api, URL, ca_file="/no/such/file.pem")
    assert "CA file" in missing["models"]["detail"]


def test_each_dialect_has_its_key_and_list() -> None:
    upstream = make(dialect="anthropic")
    assert headers_of(upstream.entry(), "k")["x-api-key"] == "k"
    assert "authorization" not in headers_of(upstream.entry(), "k")
    upstream.dialect = "ollama"
    assert headers_of(upstream.entry(), "k")["authorization"] == "Bearer k"
    assert "authorization" not in headers_of(upstream.entry(), "")


def test_the_admin_writes_a_key_and_never_shows_it(admin_client: Any, settings: Any) -> None:
    form = {
        "name": "box",
        "url": URL,
        "dialect": "openai",
        "key": SECRET,
        "concurrency": "4",
        "connect_timeout_s": "5",
        "first_token_timeout_s": "60",
        "token_timeout_s": "30",
    }
    assert admin_client.post(reverse("admin:fleet_upstream_add"), form).status_code == 302
    row = Upstream.objects.get()
    assert unseal(row.sealed_secret, settings.SECRET_KEY) == SECRET
    at = reverse("admin:fleet_upstream_change", args=[row.pk])
    history = reverse("admin:fleet_upstream_history", args=[row.pk])
    pages = [at, history, reverse("admin:fleet_upstream_changelist")]
    assert not any(SECRET in admin_client.get(page).content.decode() for page in pages)
    kept = form | {"key": "", "concurrency": "5"}
    assert admin_client.post(at, kept).status_code == 302
    row.refresh_from_db()
    assert (row.concurrency, row.has_key) == (5, True)
    moved = admin_client.post(at, kept | {"url": "http://evil/v1"})
    assert "needs the key again" in moved.content.decode()
    assert admin_client.post(at, kept | {"removes_key": "on"}).status_code == 302
    row.refresh_from_db()
    assert not row.has_key
    with FakeUpstream() as upstream:
        upstream.answer = chats
        services.upstream_update(
            actor=COMMAND, upstream=_at(row, upstream.url), changed_fields=["url"]
        )
        action = {"action": "test_selected", "_selected_action": [str(row.pk)]}
        shown = admin_client.post(reverse("admin:fleet_upstream_changelist"), action, follow=True)
    assert "models works" in shown.content.decode()
    row.refresh_from_db()
    assert [model["id"] for model in row.known_models] == ["m"]


def _at(row: Upstream, url: str) -> Upstream:
    row.url = url
    return row
