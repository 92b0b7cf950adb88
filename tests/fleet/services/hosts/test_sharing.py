"""The private Redis of a running serve is opened to invited hosts by a button, and closed again."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from benchmarks.ports import free_port
from fleet import services
from fleet.live import reading as live
from fleet.models import FleetPolicy
from fleet.services.hosts import invitations
from helexa_site.bootstrap.arguments import ServeOptions
from helexa_site.bootstrap.redis_server import URL_FILE
from helexa_site.bootstrap.serve import with_kept_share
from helexa_site.bootstrap.sharing import SHARE_FILE, Share, find_share, keep_share
from inference.protocol.joining import decode_joining
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.metering.callers import staff
from tests.servers.private_redis import running_redis

PAGE = "/admin/dashboard/sharing"
HOST = "127.0.0.1"
OPTIONS = ServeOptions(host=HOST, port=31313, data_dir=None, with_model=False)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def redis_dir(tmp_path: Path) -> Path:
    return tmp_path / "redis"


@pytest.fixture
def private(
    db: None, redis_dir: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[redis.Redis]:
    """The Redis that serve has started in its data directory."""
    monkeypatch.setattr(invitations, "reached_at", lambda _host: [HOST])
    monkeypatch.setattr(invitations, "_applied", None)
    with running_redis(redis_dir) as url, redis.Redis.from_url(url) as client:
        settings.CONFIG = replace(settings.CONFIG, data_dir=redis_dir.parent, redis_url=url)
        monkeypatch.setattr(live, "redis_client", lambda: client)
        yield client


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_a_host_is_invited_without_a_restart(
    private: redis.Redis,
    admin_client: Client,
    redis_dir: Path,
    port: int,
    django_capture_on_commit_callbacks: Any,
) -> None:
    steps = admin_client.get("/admin/dashboard/first-steps").text
    assert f'action="{PAGE}"' in steps and f"<option>{HOST}</option>" in steps
    assert "Make an invitation" not in steps
    assert 'id="share"' in admin_client.get(PAGE).text
    form = admin_client.get("/admin/fleet/invitation/add/").text
    assert f'<a href="{PAGE}">Sharing</a>' in form

    answer = admin_client.post(PAGE, {"do": "open", "host": HOST, "port": str(port)})
    assert (answer.status_code, answer["Location"]) == (302, PAGE)
    assert is_open(port)
    entry = AuditEntry.objects.get(action="fleet.share")
    assert (entry.actor, entry.detail) == ("user:admin", {"address": f"{HOST}:{port}"})
    steps = admin_client.get("/admin/dashboard/first-steps").text
    assert f"{HOST}:{port}" in steps and "Make an invitation" in steps

    with django_capture_on_commit_callbacks(execute=True):
        join = services.neuron_invite(actor=COMMAND, neuron_name="beast")
    with redis.Redis.from_url(decode_joining(join).redis_url) as guest:
        assert guest.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            guest.config_get("port")
    with redis.Redis(host=HOST, port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()

    assert find_share(redis_dir) == Share(host=HOST, port=port)
    page = admin_client.get(PAGE).text
    assert "Stop sharing" in page and 'id="share"' not in page
    assert admin_client.post(PAGE, {"do": "close"}).status_code == 302
    assert not is_open(port)
    assert private.ping(), "its socket stays"
    assert find_share(redis_dir) is None
    assert FleetPolicy.objects.get().share_address == ""


def refused(admin_client: Client, port: int, /, **words: str) -> str:
    answer = admin_client.post(PAGE, {"do": "open", "host": HOST, "port": str(port)} | words)
    assert answer.status_code == 400
    return answer.text


def test_what_cannot_be_is_refused_and_nothing_is_kept(
    private: redis.Redis, admin_client: Client, redis_dir: Path, port: int
) -> None:
    for words, reason in (
        ({"host": "10.9.9.9"}, "none of this machine"),
        ({"port": "0"}, "from 1024 to 65535"),
        ({"port": "70000"}, "from 1024 to 65535"),
        ({"port": "port"}, "is not a port"),
        ({"do": "close"}, "was not opened from here"),
    ):
        assert reason in refused(admin_client, port, **words)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = refused(admin_client, port)
        assert f"cannot listen at {HOST}:{port}" in text
        assert f'value="{port}"' in text, "what was typed stays"
    assert private.config_get("port") == {"port": "0"}
    assert not AuditEntry.objects.filter(action="fleet.share").exists()
    assert find_share(redis_dir) is None
    assert not FleetPolicy.objects.exclude(share_address="").exists()


def test_another_redis_and_what_serve_was_started_with_are_the_operators(
    private: redis.Redis, admin_client: Client, redis_dir: Path, port: int
) -> None:
    ours = (redis_dir / URL_FILE).read_text()
    (redis_dir / URL_FILE).write_text("unix://:other@/other.sock?db=0")
    page = admin_client.get(PAGE).text
    assert "start serve with --share ADDRESS:PORT" in page and 'id="share"' not in page
    assert "start serve with --share" in admin_client.get("/admin/dashboard/first-steps").text
    assert "only the private Redis" in refused(admin_client, port)
    assert not is_open(port)
    (redis_dir / URL_FILE).write_text(ours)
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=True, certificate="PEM")
    page = admin_client.get(PAGE).text
    assert "as <code>serve --share</code> has it" in page and 'id="unshare"' not in page
    assert "open already" in refused(admin_client, port)
    assert FleetPolicy.objects.get().share_is_tls


def test_who_may_not_change_the_policy_opens_nothing(private: redis.Redis, port: int) -> None:
    client = staff()
    assert client.get(PAGE).status_code == 403
    assert client.post(PAGE, {"do": "open", "host": HOST, "port": str(port)}).status_code == 403
    assert f'action="{PAGE}"' not in client.get("/admin/dashboard/first-steps").text
    assert Client().post(PAGE).status_code == 302
    assert not is_open(port)


def test_the_next_serve_opens_it_again(
    redis_dir: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    redis_dir.mkdir()
    assert with_kept_share(OPTIONS, redis_dir) is OPTIONS
    share = Share(host=HOST, port=port)
    keep_share(redis_dir, share)
    assert with_kept_share(OPTIONS, redis_dir).share == share
    flag = replace(OPTIONS, share=Share(host="10.0.0.5", port=1))
    assert with_kept_share(flag, redis_dir) is flag
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        assert with_kept_share(OPTIONS, redis_dir) is OPTIONS
    assert f"not at {HOST}:{port}" in capsys.readouterr().out
    for text in ("", "{", "[]", json.dumps({"host": HOST})):
        (redis_dir / SHARE_FILE).write_text(text)
        assert with_kept_share(OPTIONS, redis_dir) is OPTIONS
