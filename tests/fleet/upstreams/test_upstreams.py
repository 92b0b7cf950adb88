"""Upstreams by REST, command, admin and file, with a key that nothing shows."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from fleet import selectors, services
from fleet.errors import UpstreamSecretError, UpstreamValueError
from fleet.models import Upstream
from fleet.models_toml import ModelsTomlError, read_document
from fleet.models_toml_plan import plan_import, write_document
from fleet.upstream_http import headers_of
from fleet.upstreams import unseal
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act, page, sent
from tests.fleet.api.api_support import Api
from tests.fleet.upstreams.conftest import SECRET, imported, make, update
from tests.fleet.upstreams.test_probes import chats
from tests.metering.commands.command_output import output
from tests.servers.fake_upstream import FakeUpstream

pytestmark = pytest.mark.django_db(transaction=True)

URL = "http://box:8000/v1"


def run(*words: str) -> str:
    return output("upstreams", *words)


def everything_stored() -> str:
    with connection.cursor() as cursor:
        rows = []
        for table in ("fleet_upstream", "metering_auditentry"):
            cursor.execute(f"SELECT * FROM {table}")
            rows += cursor.fetchall()
    return repr(rows)


def test_a_key_is_kept_and_nothing_shows_it(api: Api, caplog, settings) -> None:
    def changed(status: int = 200, **values: Any) -> Any:
        return api.patch("upstreams/box", values, status)

    caplog.set_level(logging.DEBUG)
    made = api.post("upstreams", {"name": "box", "url": f"{URL}/", "key": SECRET}, 201)
    assert (made["url"], made["has_key"], made["dialect"]) == (URL, True, "openai")
    row = Upstream.objects.get()
    assert unseal(row.sealed_secret, settings.SECRET_KEY) == SECRET
    shown = [made, api.get("upstreams"), api.get("upstreams/box"), api.get("audit")]
    shown += [changed(key=SECRET + "2", concurrency=2), changed(400, key=SECRET + "\u00e4")]
    kept = f"{row.entry()!r}{row.__dict__!r}{everything_stored()}"
    assert SECRET not in json.dumps(shown) + kept + caplog.text
    assert AuditEntry.objects.get(action="upstream.create").detail["key"] == "set"
    update = AuditEntry.objects.get(action="upstream.update")
    assert update.detail == {"concurrency": [64, 2], "key": "set"}
    for wrong in (row.sealed_secret, row.sealed_secret[:-4]):
        with pytest.raises(UpstreamSecretError, match="upstreams change NAME --key -"):
            unseal(wrong, "another signing key")
    # It is sent to no other host, and by its dialect.
    for elsewhere in ("http://evil:8000/v1", "http://box:9/v1", "https://box:8000/v1"):
        refused = changed(400, url=elsewhere)
        assert (refused["param"], refused["code"]) == ("url", "invalid_value")
    assert changed(url="http://box:8000/v2")["url"].endswith("/v2")
    assert changed(url="http://other/v1", key="sk-new")["has_key"] is True
    bearer = {"authorization": "Bearer k"}
    sent = {"openai": bearer, "ollama": bearer, "anthropic": {"x-api-key": "k"}}
    for row.dialect, headers in sent.items():
        found = headers_of(row.entry(), "k")
        names = {"authorization", "x-api-key"} & {*found}
        assert {name: found[name] for name in names} == headers
        assert "authorization" not in headers_of(row.entry(), "")
    assert changed(key="")["has_key"] is False
    api.delete("upstreams/box")
    assert api.get("upstreams/box", 404)["code"] == "upstream_not_found"


def test_values_that_cannot_be_are_refused_by_name(api: Api) -> None:
    for field, value in (
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
    ):
        refused = api.post("upstreams", {"name": "box", "url": URL, field: value}, 400)
        assert refused["param"] == field
        assert "secret" not in refused["detail"] or field == "key"
    for change, problem in (
        (('name = "box"', 'name = "Box"'), "is not an upstream's name"),
        (('name = "box"', ""), "An upstream has a name"),
        (("concurrency = 4", 'key = "sk-x"'), "upstreams change NAME --key -"),
        (("concurrency = 4", "speed = 4"), "There is no such key"),
        (("concurrency = 4", 'concurrency = "4"'), "is not a whole number"),
        (("upstream:box/m", "upstream:other/m"), "There is no upstream 'other'"),
        (("[[upstreams]]", "[upstreams]"), r"\[\[upstreams\]\]"),
    ):
        with pytest.raises(ModelsTomlError, match=problem):
            imported(BOX.replace(*change))
    assert not Upstream.objects.exists()
    make()  # a name is given once
    with pytest.raises(UpstreamValueError, match="already"):
        make()
    with pytest.raises(ModelsTomlError, match="has that name"):
        imported(BOX + '[[upstreams]]\nname = "box"\nurl = "http://b"\n')


def test_the_commands(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
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


FORM = {"name": "box", "url": URL, "dialect": "openai", "concurrency": "4"}
FORM |= dict.fromkeys(("connect_timeout_s", "first_token_timeout_s", "token_timeout_s"), "5")


def test_the_admin_writes_a_key_and_never_shows_it(admin_client, settings) -> None:
    def saved(view: str = "change", **changes: str) -> str:
        args = () if view == "add" else (Upstream.objects.get().pk,)
        text = sent(admin_client, "upstream", view, *args, **FORM | changes)
        for row in Upstream.objects.all():
            history = page(admin_client, "upstream", "history", row.pk)
            form = page(admin_client, "upstream", "change", row.pk)
            assert SECRET not in text + history + form
        return text

    assert "A key holds no spaces" in saved("add", key="a b")
    text = saved("add", key=SECRET)
    row = Upstream.objects.get()
    assert unseal(row.sealed_secret, settings.SECRET_KEY) == SECRET
    assert "not tested yet" in text
    saved(key="", concurrency="5")
    row.refresh_from_db()
    assert (row.concurrency, row.has_key) == (5, True)
    assert "needs the key again" in saved(key="", url="http://evil/v1")
    model = services.catalogue_model_create(actor=COMMAND, name="large", source="upstream:box/m")
    text = saved(leaves_network="on")
    assert "Requests of large may not leave your network" in text
    assert "/requests/?neuron=upstream%3Abox" in text
    assert "box, which serves large" in saved("delete", post="yes")
    saved(removes_key="on")
    row.refresh_from_db()
    assert not row.has_key and not row.leaves_network
    with FakeUpstream() as upstream:
        upstream.answer = chats
        update(row, url=upstream.url)
        assert "models works" in act(admin_client, "upstream", "test_selected", row)
    row.refresh_from_db()
    assert [model["id"] for model in row.known_models] == ["m"]
    model.delete()
    saved("delete", post="yes")
    assert not Upstream.objects.exists()


BOX = """
[[upstreams]]
name = "box"
url = "http://box:8000/v1/"
concurrency = 4

[[models]]
id = "far"
source = "upstream:box/m"
"""


def test_a_file_makes_changes_and_removes_upstreams_with_their_models() -> None:
    made = imported(BOX)
    assert made[:3] == ["+ upstream box", '    url = "http://box:8000/v1"', "    concurrency = 4"]
    state = selectors.catalogue_state()
    assert plan_import(read_document(write_document(state)), state, prune=True).is_empty
    changed = imported(BOX.replace("concurrency = 4", "concurrency = 5"))
    assert changed[:2] == ["~ upstream box", "    concurrency = 4 -> 5"]
    assert Upstream.objects.get().concurrency == 5
    for word in ("true", "false", "true"):  # it is brought outside and inside with its models
        text = BOX.replace("concurrency = 4", f"leaves_network = {word}")
        imported(f"{text}may_leave_network = {word}\n")
        assert Upstream.objects.get().leaves_network is (word == "true")
    box = Upstream.objects.get()
    services.upstream_update(actor=COMMAND, upstream=box, changed_fields=[], key=SECRET)
    written = write_document(selectors.catalogue_state())
    assert SECRET not in written and "key" not in written
    imported(f"{BOX}may_leave_network = false\n")
    with pytest.raises(UpstreamValueError, match="needs the key again"):
        imported(BOX.replace("box:8000", "evil"))
    box.refresh_from_db()
    assert box.has_key and box.url == URL
    assert "not in the file, left alone: far, box" in imported("")[-1]
    assert imported("", prune=True) == ["- upstream box", "- model far"]
    assert not Upstream.objects.exists()
