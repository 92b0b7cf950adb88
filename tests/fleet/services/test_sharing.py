"""An invited neuron reaches nothing that is not its own; serve's Redis is shared by a button."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import Client

from benchmarks.ports import free_port
from fleet import redis_users, services
from fleet.admin.hosts import InvitationForm
from fleet.errors import InvitationError, UnknownNeuronError
from fleet.live import reading as live
from fleet.live.desired_state import decode_desired_states
from fleet.models import FleetPolicy, Invitation, NeuronWish
from fleet.services import invitations
from helexa_site.bootstrap.arguments import ServeOptions
from helexa_site.bootstrap.redis_server import URL_FILE
from helexa_site.bootstrap.serve import with_kept_share
from helexa_site.data_directory import SHARE_FILE, Share, find_share, keep_share
from helexa_site.management.base import ExitCode
from helexa_site.program import Installation
from inference.protocol.joining import decode_joining
from inference.protocol.keys import NEURON_DESIRED_STATES, heartbeat_key
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.services.invited_hosts import ADDRESS, guest, invite
from tests.metering.callers import staff
from tests.servers.private_redis import running_redis

PAGE = "/admin/dashboard/sharing"
HOST = "127.0.0.1"
OPTIONS = ServeOptions(host=HOST, port=31313, data_dir=None, with_model=False)


port = pytest.fixture(free_port)


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
    private, admin_client, redis_dir: Path, port: int, django_capture_on_commit_callbacks
) -> None:
    def first_steps() -> str:
        return admin_client.get("/admin/dashboard/first-steps").text

    steps = first_steps()
    assert f'action="{PAGE}"' in steps and f"<option>{HOST}</option>" in steps
    answer = admin_client.post(PAGE, {"do": "open", "host": HOST, "port": str(port)})
    assert (answer.status_code, answer["Location"]) == (302, PAGE)
    assert is_open(port)
    entry = AuditEntry.objects.get(action="fleet.share")
    assert (entry.actor, entry.detail) == ("user:admin", {"address": f"{HOST}:{port}"})
    steps = first_steps()
    assert f"{HOST}:{port}" in steps and "Make an invitation" in steps
    with django_capture_on_commit_callbacks(execute=True):
        join = invite()
    with redis.Redis.from_url(decode_joining(join).redis_url) as guest:
        assert guest.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            guest.config_get("port")
    with redis.Redis(host=HOST, port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert find_share(redis_dir.parent) == Share(host=HOST, port=port)
    page = admin_client.get(PAGE).text
    assert "Stop sharing" in page and 'id="share"' not in page
    assert admin_client.post(PAGE, {"do": "close"}).status_code == 302
    assert not is_open(port)
    assert private.ping(), "its socket stays"
    assert find_share(redis_dir.parent) is None
    assert FleetPolicy.objects.get().share_address == ""


def test_what_cannot_be_is_refused_and_not_kept(private, admin_client, redis_dir, port) -> None:
    form = {"do": "open", "host": HOST, "port": str(port)}

    def refused(**words: str) -> str:
        answer = admin_client.post(PAGE, form | words)
        assert answer.status_code == 400
        return answer.text

    client = staff()  # who may not change the policy opens nothing
    assert client.get(PAGE).status_code == client.post(PAGE, form).status_code == 403
    assert f'action="{PAGE}"' not in client.get("/admin/dashboard/first-steps").text
    assert Client().post(PAGE).status_code == 302
    for words, reason in (
        ({"host": "10.9.9.9"}, "none of this machine"),
        ({"port": "0"}, "from 1024 to 65535"),
        ({"port": "70000"}, "from 1024 to 65535"),
        ({"port": "port"}, "is not a port"),
        ({"do": "close"}, "was not opened from here"),
    ):
        assert reason in refused(**words)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        used = str(taken.getsockname()[1])
        text = refused(port=used)
        assert f"cannot listen at {HOST}:{used}" in text
        assert f'value="{used}"' in text, "what was typed stays"
    # Another Redis, and what serve was started with, are the operator's.
    ours = (redis_dir / URL_FILE).read_text()
    (redis_dir / URL_FILE).write_text("unix://:other@/other.sock?db=0")
    page = admin_client.get(PAGE).text
    assert "start serve with --share ADDRESS:PORT" in page and 'id="share"' not in page
    assert "start serve with --share" in admin_client.get("/admin/dashboard/first-steps").text
    assert "only the private Redis" in refused()
    (redis_dir / URL_FILE).write_text(ours)
    assert private.config_get("port") == {"port": "0"} and not is_open(port)
    assert not AuditEntry.objects.filter(action="fleet.share").exists()
    assert find_share(redis_dir.parent) is None
    assert not FleetPolicy.objects.exclude(share_address="").exists()
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=True, certificate="PEM")
    page = admin_client.get(PAGE).text
    assert "as <code>serve --share</code> has it" in page and 'id="unshare"' not in page
    assert "open already" in refused()
    assert FleetPolicy.objects.get().share_is_tls


def test_the_next_serve_opens_it_again(redis_dir, port, capsys) -> None:
    redis_dir.mkdir()
    assert with_kept_share(OPTIONS, redis_dir.parent) is OPTIONS
    share = Share(host=HOST, port=port)
    keep_share(redis_dir.parent, share)
    assert with_kept_share(OPTIONS, redis_dir.parent).share == share
    flag = replace(OPTIONS, share=Share(host="10.0.0.5", port=1))
    assert with_kept_share(flag, redis_dir.parent) is flag
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        assert with_kept_share(OPTIONS, redis_dir.parent) is OPTIONS
    assert f"not at {HOST}:{port}" in capsys.readouterr().out
    for text in ("", "{", "[]", json.dumps({"host": HOST})):
        (redis_dir.parent / SHARE_FILE).write_text(text)
        assert with_kept_share(OPTIONS, redis_dir.parent) is OPTIONS


@pytest.mark.django_db(transaction=True)
def test_the_line_has_all_that_a_host_needs_until_it_is_revoked(redis_url, shared_redis) -> None:
    def published() -> str:
        states = decode_desired_states(shared_redis.hgetall(NEURON_DESIRED_STATES))
        assert states is not None
        return states.of("beast").admission

    def is_out(join: str) -> bool:
        with pytest.raises(redis.RedisError):
            guest(redis_url, join).ping()
        return True

    for user in ("neuron-stranger", "operators-own"):
        shared_redis.acl_setuser(user, enabled=True)
    services.redis_users_apply()
    assert set(shared_redis.acl_users()) == {"default", "operators-own"}
    join = invite()
    joining = decode_joining(join)
    assert joining.neuron == "beast" and joining.redis_url.startswith("redis://neuron-beast:")
    assert joining.redis_url.endswith(f"@{ADDRESS}/0")
    secret = joining.redis_url.split(":")[2].partition("@")[0]
    assert secret not in str(Invitation.objects.get().__dict__)
    assert NeuronWish.objects.get().admission == published() == "admitted"
    assert "neuron.invite" in [entry.action for entry in AuditEntry.objects.all()]
    shared_redis.acl_deluser("neuron-beast")
    assert is_out(join)
    services.redis_users_apply()
    client = guest(redis_url, join)
    assert client.ping()
    services.neuron_revoke(actor=COMMAND, neuron_name="beast")
    with pytest.raises(redis.RedisError):
        client.ping()
    assert is_out(join) and published() == "refused"
    with pytest.raises(UnknownNeuronError):
        services.neuron_revoke(actor=COMMAND, neuron_name="beast")
    first = invite()
    assert published() == "admitted"
    services.neuron_refuse(actor=COMMAND, neuron_name="beast")
    second = invite()
    assert published() == "refused", "the operator has decided on a host that was in"
    assert guest(redis_url, second).ping() and is_out(first)


@pytest.mark.django_db(transaction=True)
def test_a_connected_host_keeps_its_line(redis_url, shared_redis, capsys) -> None:
    def invited(*words: str) -> Any:
        call_command("neurons", "invite", "beast", *words)
        return capsys.readouterr()

    shown = invited()
    assert shown.out.startswith("python3 manage.py neuron --join hx1.") and "void" not in shown.err
    shown = json.loads(invited("--json", "--address", "10.0.0.7:7000").out)
    first = shown["join"]
    assert shown["voids_earlier"] and decode_joining(first).redis_url.endswith("@10.0.0.7:7000/0")
    shared_redis.set(heartbeat_key("beast"), b"it reports")
    with pytest.raises(CommandError, match="connected by an earlier line") as refused:
        invited()
    assert refused.value.returncode == ExitCode.CONFLICT
    assert "already exists" in str(InvitationForm({"neuron_name": "beast"}).errors)
    assert guest(redis_url, first).ping()
    assert "its earlier line is void from now on" in invited("--again", "true").err
    with pytest.raises(redis.RedisError):
        guest(redis_url, first).ping()
    call_command("neurons", "revoke", "beast")
    with pytest.raises(CommandError, match="no invitation"):
        call_command("neurons", "revoke", "beast")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("shared_redis")
def test_where_nobody_reaches_redis_nobody_is_invited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "a b", "a:b", "a*", "x" * 64):
        with pytest.raises(InvitationError):
            invite(name)
    services.share_record(actor=COMMAND, address="", is_tls=False, certificate="")
    with pytest.raises(InvitationError, match="--share"):
        invite()
    monkeypatch.setattr(invitations, "installation", lambda: Installation.PACKAGES)
    with pytest.raises(InvitationError, match=r"/etc/cortex/cortex\.env") as refused:
        invite()
    assert "--share" not in str(refused.value), "packages run units and no serve"
    assert not Invitation.objects.exists()
    # Debian 12 has 7.0, which refuses the whole rule for one command.
    for version, knows in (((7, 2), True), ((7, 0), False)):
        assert ("+client|setinfo" in redis_users.rules("beast", "0" * 64, version)) == knows
    services.share_record(actor=COMMAND, address=ADDRESS, is_tls=False, certificate="")
    monkeypatch.setattr(redis_users, "MINIMUM_REDIS", 999)
    with pytest.raises(InvitationError, match="needs Redis 999"):
        invite()
