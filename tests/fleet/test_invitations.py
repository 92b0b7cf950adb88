"""An invited neuron works under its Redis user, and reaches nothing that is not its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from fleet import live, redis_users, services
from fleet.errors import InvitationError, UnknownNeuronError
from fleet.models import Invitation, NeuronWish
from fleet.services import invitations
from helexa_site.program import Installation
from inference.protocol import keys
from inference.protocol.joining import decode_joining
from metering.actor import COMMAND
from metering.models import AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "gateway.example:31315"


@pytest.fixture(autouse=True)
def _a_shared_redis(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(invitations, "_has_looked", False)
    invitations._applied.clear()
    services.share_record(actor=COMMAND, address=ADDRESS, is_tls=False, certificate="")
    yield
    for user in redis_db.acl_users():
        if user != "default":
            redis_db.acl_deluser(user)


def guest(redis_url: str, join: str) -> redis.Redis:
    """The invited host's client, over the socket of this test's Redis."""
    user, _, secret = decode_joining(join).redis_url.removeprefix("redis://").partition(":")
    socket = redis_url.partition("@")[2]
    return redis.Redis.from_url(f"unix://{user}:{secret.partition('@')[0]}@{socket}")


def invite(name: str = "beast") -> str:
    return services.neuron_invite(actor=COMMAND, neuron_name=name)


def test_the_line_has_all_that_a_host_needs() -> None:
    joining = decode_joining(invite())
    assert joining.neuron == "beast"
    assert joining.redis_url.startswith("redis://neuron-beast:")
    assert joining.redis_url.endswith(f"@{ADDRESS}/0")
    secret = joining.redis_url.split(":")[2].partition("@")[0]
    row = Invitation.objects.get()
    assert secret not in str(row.__dict__)
    assert NeuronWish.objects.get().admission == "admitted"
    assert "neuron.invite" in [entry.action for entry in AuditEntry.objects.all()]


def test_its_own_keys_and_no_others(redis_url: str, redis_db: redis.Redis) -> None:
    client = guest(redis_url, invite())
    client.execute_command("SELECT", "0")
    for key in ("heartbeat", "specs", "held", "usage", "lease"):
        client.delete(f"helexa:neuron:beast:{key}")
    client.lpush(keys.neuron_queue("beast"), b"x")
    redis_db.xadd(keys.events_key("beast", "gw"), {b"": b""})
    client.xadd(keys.events_key("beast", "gw"), {b"e": b"x"}, nomkstream=True)
    redis_db.set(keys.gateway_alive_key("gw"), b"1")
    assert client.exists(keys.gateway_alive_key("gw")) == 1
    client.xadd(keys.usage_key("beast"), {b"r": b"x"})
    forbidden: list[tuple[Any, ...]] = [
        ("GET", keys.heartbeat_key("other")),
        ("SET", keys.heartbeat_key("other"), "x"),
        ("SET", keys.lease_key("beast2"), "x"),
        ("HGETALL", keys.specs_key("other")),
        ("XRANGE", keys.inbox_key("other"), "-", "+"),
        ("LPUSH", keys.neuron_queue("other"), "x"),
        ("BRPOP", keys.neuron_queue("beast2"), "1"),
        ("LPUSH", keys.CONTROL_QUEUE, "x"),
        ("XRANGE", keys.events_key("other", "gw"), "-", "+"),
        ("XREAD", "STREAMS", keys.events_key("other", "gw"), "0"),
        ("DEL", keys.events_key("other", "gw")),
        ("XADD", keys.events_key("other", "gw"), "MAXLEN", "0", "*", "b", "x"),
        ("EXPIRE", keys.events_key("other", "gw"), "0"),
        ("SET", keys.gateway_marker_key("gw"), "x"),
        ("XTRIM", keys.events_key("other", "gw"), "MAXLEN", "0"),
        ("XADD", keys.usage_key("other"), "*", "r", "x"),
        ("XRANGE", keys.usage_key("other"), "-", "+"),
        ("DEL", keys.usage_key("other")),
        ("GET", keys.gateway_alive_key("gw")),
        ("DEL", keys.gateway_alive_key("gw")),
        ("HGETALL", keys.limit_counts_key("key", "hx-1")),
        ("ZADD", keys.NEURONS, "1", "other"),
        ("HGETALL", keys.NEURON_WISHES),
        ("GET", keys.CONTROL_LEADER),
        ("HGETALL", "unacked"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
        ("MONITOR",),
        ("SUBSCRIBE", "x"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", keys.heartbeat_key("other")),
        ("EVAL", f"return redis.call('GET', '{keys.heartbeat_key('other')}')", "0"),
        ("EVAL", "while true do end", "0"),
        ("EVALSHA", "0" * 40, "0"),
        ("SCRIPT", "LOAD", "return 1"),
        ("SCRIPT", "FLUSH"),
        ("FCALL", "f", "0"),
        ("FUNCTION", "LIST"),
        ("SELECT", "1"),
        ("SHUTDOWN",),
    ]
    for command in forbidden:
        with pytest.raises(redis.ResponseError, match=r"permission|can't access|can't run"):
            client.execute_command(*command)


def test_users_come_back_after_a_redis_that_lost_them(redis_url: str, redis_db) -> None:
    join = invite()
    redis_db.acl_deluser("neuron-beast")
    with pytest.raises(redis.RedisError):
        guest(redis_url, join).ping()
    services.redis_users_apply()  # as each of the control's ticks does
    assert guest(redis_url, join).ping()


def test_revoked_it_is_out_at_once(redis_url: str) -> None:
    join = invite()
    client = guest(redis_url, join)
    assert client.ping()
    services.neuron_revoke(actor=COMMAND, neuron_name="beast")
    with pytest.raises(redis.RedisError):
        client.ping()
    with pytest.raises(UnknownNeuronError):
        services.neuron_revoke(actor=COMMAND, neuron_name="beast")


def test_a_user_that_nobody_invited_is_removed_at_the_first_look(redis_db) -> None:
    redis_db.acl_setuser("neuron-stranger", enabled=True)
    redis_db.acl_setuser("operators-own", enabled=True)
    services.redis_users_apply()
    assert set(redis_db.acl_users()) == {"default", "operators-own"}


def test_invited_again_the_first_line_is_void(redis_url: str) -> None:
    first, second = invite(), invite()
    assert guest(redis_url, second).ping()
    with pytest.raises(redis.RedisError):
        guest(redis_url, first).ping()


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("neurons", "invite", "beast")
    assert capsys.readouterr().out.startswith("python3 manage.py neuron --join hx1.")
    call_command("neurons", "invite", "beast", "--json", "--address", "10.0.0.7:7000")
    found = json.loads(capsys.readouterr().out)
    assert decode_joining(found["join"]).redis_url.endswith("@10.0.0.7:7000/0")
    call_command("neurons", "revoke", "beast")
    with pytest.raises(CommandError, match="no invitation"):
        call_command("neurons", "revoke", "beast")


def test_where_nobody_reaches_redis_nobody_is_invited() -> None:
    services.share_record(actor=COMMAND, address="", is_tls=False, certificate="")
    with pytest.raises(InvitationError, match="--share"):
        invite()
    assert not Invitation.objects.exists()


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a*", "x" * 64])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvitationError):
        invite(name)


def test_an_older_redis_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_users, "MINIMUM_REDIS", 999)
    with pytest.raises(InvitationError, match="needs Redis 999"):
        invite()


def test_a_redis_is_told_no_command_that_it_does_not_know() -> None:
    """Debian 12 has 7.0, which refuses the whole rule for one."""
    assert "+client|setinfo" in redis_users.rules("beast", "0" * 64, (7, 2))
    assert "+client|setinfo" not in redis_users.rules("beast", "0" * 64, (7, 0))


def test_the_packages_are_told_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run units and no ``serve``."""
    monkeypatch.setattr("fleet.services.invitations.installation", lambda: Installation.PACKAGES)
    services.share_record(actor=COMMAND, address="", is_tls=False, certificate="")
    with pytest.raises(InvitationError, match=r"/etc/cortex/cortex\.env") as refused:
        invite()
    assert "--share" not in str(refused.value)
