"""Opening the private Redis of a running ``serve`` to invited hosts, and closing it again.

Only that Redis, which ``serve`` has made: one of the operator's own is theirs to open. The address
is kept in the data directory, so that the next ``serve`` opens it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from fleet.errors import InvitationError
from fleet.live import reading as live
from fleet.models import FleetPolicy
from fleet.redis_users import version_problem
from fleet.services.hosts.invitations import invitation_check, share_record
from helexa_site.bootstrap.private_redis.addresses import reached_at
from helexa_site.bootstrap.private_redis.kept_share import find_share, forget_share, keep_share
from helexa_site.bootstrap.private_redis.redis_server import URL_FILE
from helexa_site.bootstrap.private_redis.sharing import Share
from metering.actor import Actor

DEFAULT_SHARE_PORT = 31315
LEAST_SHARE_PORT, MAX_SHARE_PORT = 1024, 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Whether hosts can be invited, and what would make it so."""

    problem: str | None
    """Why no host could use an invitation; ``None``: one could."""
    address: str
    """The address at which invited hosts reach the private Redis; empty: it is not open, or Redis
    is another one."""
    can_open: bool
    can_close: bool
    addresses: tuple[str, ...]
    """This machine's, at which it can be opened."""


def sharing_state() -> Sharing:
    """Makes two queries."""
    policy = FleetPolicy.objects.filter(pk=1).first() or FleetPolicy()
    is_private = _is_private()
    addresses = tuple(reached_at("")) if is_private else ()
    return Sharing(
        problem=invitation_check(),
        address=policy.share_address,
        can_open=is_private and not policy.share_address and bool(addresses),
        can_close=is_private
        and bool(policy.share_address)
        and find_share(_redis_dir()) is not None,
        addresses=addresses,
    )


def redis_share(*, actor: Actor, host: str, port: int) -> None:
    """Opens the private Redis at one of this machine's addresses, without TLS. Raises
    ``InvitationError``."""
    _ensure_private()
    if host not in reached_at(""):
        raise InvitationError(f"{host!r} is none of this machine's addresses")
    if not LEAST_SHARE_PORT <= port <= MAX_SHARE_PORT:
        raise InvitationError(f"use a port from {LEAST_SHARE_PORT} to {MAX_SHARE_PORT}")
    if (FleetPolicy.objects.filter(pk=1).first() or FleetPolicy()).share_address:
        raise InvitationError("it is open already")
    share = Share(host=host, port=port)
    try:
        keep_share(_redis_dir(), share)
    except OSError as error:
        raise InvitationError(f"the data directory cannot be written: {error}") from error
    try:
        _listen(share)
    except InvitationError:
        forget_share(_redis_dir())
        raise
    share_record(actor=actor, address=share.address, is_tls=False, certificate="")


def redis_unshare(*, actor: Actor) -> None:
    """Closes what ``redis_share`` has opened; hosts that are connected stay until their connection
    ends. Raises ``InvitationError``."""
    _ensure_private()
    if find_share(_redis_dir()) is None:
        raise InvitationError("it was not opened from here: start serve without --share")
    _listen(None)
    forget_share(_redis_dir())
    share_record(actor=actor, address="", is_tls=False, certificate="")


def _listen(share: Share | None) -> None:
    """Raises ``InvitationError``."""
    words = ("port", "0") if share is None else ("bind", share.host, "port", str(share.port))
    try:
        client: Any = live.redis_client()  # CONFIG SET has no types
        if problem := version_problem(client):
            raise InvitationError(problem)
        client.execute_command("CONFIG SET", *words)
    except redis.ResponseError as error:
        where = "nowhere" if share is None else share.address
        raise InvitationError(f"Redis cannot listen at {where}: {error}") from error
    except (redis.RedisError, OSError) as error:
        raise InvitationError(f"Redis does not answer: {error}") from error


def _ensure_private() -> None:
    """Raises ``InvitationError``."""
    if not _is_private():
        raise InvitationError("only the private Redis of serve can be opened from here")


def _is_private() -> bool:
    """Whether Redis is the one that ``serve`` has made in this data directory."""
    try:
        url: str = (_redis_dir() / URL_FILE).read_text()
    except OSError:
        return False
    return url == settings.CONFIG.redis_url


def _redis_dir() -> Path:
    data_dir: Path = settings.CONFIG.data_dir
    return data_dir / "redis"
