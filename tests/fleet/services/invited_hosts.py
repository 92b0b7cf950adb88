"""Hosts that are invited to this test's Redis, each as its own Redis user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from fleet import services
from fleet.live import reading as live
from fleet.services import invitations
from inference.protocol.joining import decode_joining
from metering.audit import COMMAND

ADDRESS = "gateway.example:31315"


@pytest.fixture
def shared_redis(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The control's, which hosts may be invited to. Needs the database."""
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(invitations, "_applied", None)
    services.share_record(actor=COMMAND, address=ADDRESS, is_tls=False, certificate="")
    yield redis_db
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
