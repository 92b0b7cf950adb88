"""An invited neuron works under its Redis user, and reaches nothing that is not its own."""

from __future__ import annotations

import json

import pytest
import redis
from django.core.management import CommandError, call_command

from fleet import redis_users, services
from fleet.admin.hosts import InvitationForm
from fleet.errors import InvitationError, UnknownNeuronError
from fleet.live.desired_state import decode_desired_states
from fleet.models import Invitation, NeuronWish
from fleet.services.hosts import invitations
from helexa_site.exit_codes import ExitCode
from helexa_site.program import Installation
from inference.protocol.joining import decode_joining
from inference.protocol.keys import NEURON_DESIRED_STATES, heartbeat_key
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.services.hosts.invited_hosts import ADDRESS, guest, invite, shared_redis

__all__ = ["shared_redis"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("shared_redis")]


def test_the_line_has_all_that_a_host_needs_and_each_tick_keeps_its_redis_user(
    redis_url: str, redis_db
) -> None:
    for user in ("neuron-stranger", "operators-own"):
        redis_db.acl_setuser(user, enabled=True)
    services.redis_users_apply()
    assert set(redis_db.acl_users()) == {"default", "operators-own"}
    join = invite()
    joining = decode_joining(join)
    assert joining.neuron == "beast"
    assert joining.redis_url.startswith("redis://neuron-beast:")
    assert joining.redis_url.endswith(f"@{ADDRESS}/0")
    secret = joining.redis_url.split(":")[2].partition("@")[0]
    assert secret not in str(Invitation.objects.get().__dict__)
    assert NeuronWish.objects.get().admission == "admitted"
    assert "neuron.invite" in [entry.action for entry in AuditEntry.objects.all()]
    redis_db.acl_deluser("neuron-beast")
    with pytest.raises(redis.RedisError):
        guest(redis_url, join).ping()
    services.redis_users_apply()
    assert guest(redis_url, join).ping()


def test_revoked_it_is_out_at_once_and_until_it_is_invited_again(
    redis_url: str, shared_redis
) -> None:
    def published() -> str:
        states = decode_desired_states(shared_redis.hgetall(NEURON_DESIRED_STATES))
        assert states is not None
        return states.of("beast").admission

    client = guest(redis_url, invite())
    assert client.ping() and published() == "admitted"
    services.neuron_revoke(actor=COMMAND, neuron_name="beast")
    with pytest.raises(redis.RedisError):
        client.ping()
    assert published() == "refused"
    with pytest.raises(UnknownNeuronError):
        services.neuron_revoke(actor=COMMAND, neuron_name="beast")
    first = invite()
    assert published() == "admitted"
    services.neuron_refuse(actor=COMMAND, neuron_name="beast")
    second = invite()
    assert published() == "refused", "the operator has decided on a host that was in"
    assert guest(redis_url, second).ping()
    with pytest.raises(redis.RedisError):
        guest(redis_url, first).ping()


def test_a_connected_host_keeps_its_line(
    redis_url: str, redis_db: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("neurons", "invite", "beast")
    shown = capsys.readouterr()
    assert shown.out.startswith("python3 manage.py neuron --join hx1.") and "void" not in shown.err
    call_command("neurons", "invite", "beast", "--json", "--address", "10.0.0.7:7000")
    shown = json.loads(capsys.readouterr().out)
    first = shown["join"]
    assert shown["voids_earlier"] and decode_joining(first).redis_url.endswith("@10.0.0.7:7000/0")
    redis_db.set(heartbeat_key("beast"), b"it reports")
    with pytest.raises(CommandError, match="connected by an earlier line") as refused:
        call_command("neurons", "invite", "beast")
    assert refused.value.returncode == ExitCode.CONFLICT
    assert "already exists" in str(InvitationForm({"neuron_name": "beast"}).errors)
    assert guest(redis_url, first).ping()
    call_command("neurons", "invite", "beast", "--again", "true")
    assert "its earlier line is void from now on" in capsys.readouterr().err
    with pytest.raises(redis.RedisError):
        guest(redis_url, first).ping()
    call_command("neurons", "revoke", "beast")
    with pytest.raises(CommandError, match="no invitation"):
        call_command("neurons", "revoke", "beast")


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


def test_an_older_redis_is_refused_by_name_and_sent_nothing_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian 12 has 7.0, which refuses the whole rule for one command."""
    for version, knows in (((7, 2), True), ((7, 0), False)):
        assert ("+client|setinfo" in redis_users.rules("beast", "0" * 64, version)) == knows
    monkeypatch.setattr(redis_users, "MINIMUM_REDIS", 999)
    with pytest.raises(InvitationError, match="needs Redis 999"):
        invite()
