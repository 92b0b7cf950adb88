"""Invites hosts: a row, its Redis user, and a line to paste on the host. Opens ``serve``'s private
Redis to them; operators open their own themselves. The address is in the data directory, so that
the next ``serve`` opens it again."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.db import transaction

from fleet.errors import InvitationError, NeuronAliveError, UnknownNeuronError
from fleet.live import reading as live
from fleet.live.desired_state import Admission
from fleet.models import FleetPolicy, Invitation, NeuronWish
from fleet.redis_users import secret_hash, user_name, users_apply, version_problem
from fleet.services.neurons import desired_states_publish, neuron_admit, neuron_expect
from helexa_site.addresses import reached_at
from helexa_site.config import private_redis_url
from helexa_site.data_directory import Share, find_share, forget_share, keep_share
from helexa_site.program import Installation, installation
from inference.protocol.joining import Joining, encode_joining
from inference.protocol.keys import NEURON_NAME
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
UNREACHABLE = "no other host can reach this Redis: "
SHARE_IT = (
    "start serve with --share ADDRESS:PORT, or set REDIS_URL to a Redis of your own that they reach"
)
LET_IT_LISTEN = (
    "let it listen on an address of this machine, with a password (bind and requirepass in its "
    "redis.conf), and name that in /etc/cortex/cortex.env: "
    "REDIS_URL=redis://:password@10.0.0.5:6379/0"
)
"""The packages run no ``serve``: their Redis is Debian's."""

_applied: dict[str, str] | None = None
"""Hashes by neuron; an upgrade may bring other rules. ``None``: not applied by this process yet."""
DEFAULT_SHARE_PORT = 31315
LEAST_SHARE_PORT, MAX_SHARE_PORT = 1024, 65535


def neuron_invite(
    *, actor: Actor, neuron_name: str, address: str | None = None, again: bool = False
) -> str:
    """The line for ``manage.py neuron --join``. It voids an earlier line of that name: ``again``
    confirms that for a host connected by it. ``address``: of Redis for the host, ``HOST:PORT``,
    where it differs from the stored one. Raises ``InvitationError``, ``NeuronAliveError``."""
    if not NEURON_NAME.fullmatch(neuron_name):
        raise InvitationError(
            f"{neuron_name!r} is no neuron's name: letters, digits, '.', '_' and '-', 63 at most"
        )
    invited = Invitation.objects.filter(neuron_name=neuron_name, cut_off_at=None)
    if not again and invited.exists() and live.is_reporting(neuron_name):
        raise NeuronAliveError(
            f"{neuron_name} is connected by an earlier line, and another one would shut that host "
            "out, at the latest when Redis starts again. The earlier line is on that host, in its "
            "data directory, and cannot be shown here. With --again true (again) it is replaced"
        )
    policy = _policy()
    secret = secrets.token_urlsafe(SECRET_BYTES)
    joining = Joining(
        neuron=neuron_name,
        redis_url=_redis_url(policy, address, user_name(neuron_name), secret),
        certificate=policy.share_certificate,
    )
    _ensure_redis_can()
    with transaction.atomic():
        was_out = not invited.exists()
        Invitation.objects.update_or_create(
            neuron_name=neuron_name,
            defaults={
                "secret_sha256": secret_hash(secret),
                "invited_by": actor[:200],
                "cut_off_at": None,
                "cut_off_reason": "",
            },
        )
        desired = neuron_expect(actor=actor, neuron_name=neuron_name)
        if was_out and desired.admission == Admission.REFUSED:
            neuron_admit(actor=actor, neuron_name=neuron_name)
        audit_entry_create(actor=actor, action="neuron.invite", object_id=neuron_name)
        transaction.on_commit(redis_users_apply)
    return encode_joining(joining)


def invitation_check(*, address: str | None = None) -> str | None:
    """``None``: a host could use an invitation now."""
    try:
        _redis_url(_policy(), address, "", "")
        _ensure_redis_can()
    except InvitationError as error:
        return str(error)
    return None


def neuron_revoke(*, actor: Actor, neuron_name: str) -> None:
    """Removes its Redis user and its connections. Raises ``UnknownNeuronError``."""
    with transaction.atomic():
        num_deleted, _ = Invitation.objects.filter(neuron_name=neuron_name).delete()
        if not num_deleted:
            raise UnknownNeuronError(f"{neuron_name!r} has no invitation")
        NeuronWish.objects.filter(neuron_name=neuron_name).update(admission=Admission.REFUSED.value)
        audit_entry_create(actor=actor, action="neuron.revoke", object_id=neuron_name)
        transaction.on_commit(redis_users_apply)
        transaction.on_commit(desired_states_publish)


def redis_users_apply() -> bool:
    """Makes Redis' users match the valid invitations. Where Redis is offline, or this process may
    not, the control's next tick does it. Returns whether any is valid, or still to be removed."""
    global _applied
    invited = Invitation.objects.filter(cut_off_at=None)
    wanted = dict(invited.values_list("neuron_name", "secret_sha256"))
    if not wanted and _applied == {}:
        return False
    _applied = _applied or {}
    again = [name for name, secret in wanted.items() if _applied.get(name) != secret]
    try:
        users_apply(live.redis_client(), wanted, again=again)
    except (redis.RedisError, OSError) as error:
        logger.warning("the Redis users of invited neurons are not up to date: %s", error)
        return True
    _applied = wanted
    return bool(wanted)


def share_record(*, actor: Actor, address: str, is_tls: bool, certificate: str) -> None:
    """``address``: of the private Redis for invited hosts; empty: none."""
    values = {
        "share_address": address,
        "share_is_tls": is_tls,
        "share_certificate": certificate,
    }
    with transaction.atomic():
        policy, _ = FleetPolicy.objects.get_or_create(pk=1)
        if all(getattr(policy, name) == value for name, value in values.items()):
            return
        for name, value in values.items():
            setattr(policy, name, value)
        policy.save(update_fields=list(values))
        audit_entry_create(
            actor=actor, action="fleet.share", object_id="fleet", detail={"address": address}
        )


def _policy() -> FleetPolicy:
    return FleetPolicy.objects.filter(pk=1).first() or FleetPolicy()


def _redis_url(policy: FleetPolicy, address: str | None, user: str, secret: str) -> str:
    given = urlsplit(settings.CONFIG.redis_url)
    is_tls, database = policy.share_is_tls, ""
    if policy.share_address:
        address = address or policy.share_address
    elif given.scheme in ("redis", "rediss") and (address or not _is_this_machine(given.hostname)):
        is_tls = given.scheme == "rediss"
        address = address or f"{given.netloc.rpartition('@')[2]}"
        database = given.path.strip("/")
    else:
        is_packaged = installation() is Installation.PACKAGES
        raise InvitationError(UNREACHABLE + (LET_IT_LISTEN if is_packaged else SHARE_IT))
    scheme = "rediss" if is_tls else "redis"
    return f"{scheme}://{user}:{secret}@{address}/{database or 0}"


def _is_this_machine(host: str | None) -> bool:
    return host in (None, "", "localhost", "::1") or str(host).startswith("127.")


def _ensure_redis_can() -> None:
    """If Redis does not answer, the control logs that."""
    try:
        problem = version_problem(live.redis_client())
    except (redis.RedisError, OSError):
        return
    if problem:
        raise InvitationError(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    problem: str | None
    address: str
    """Where invited hosts reach the private Redis; empty: it is closed, or Redis is another one."""
    can_open: bool
    can_close: bool
    addresses: tuple[str, ...]


def sharing_state() -> Sharing:
    policy = _policy()
    is_private = _is_private()
    addresses = tuple(reached_at("")) if is_private else ()
    return Sharing(
        problem=invitation_check(),
        address=policy.share_address,
        can_open=is_private and not policy.share_address and bool(addresses),
        can_close=is_private
        and bool(policy.share_address)
        and find_share(settings.CONFIG.data_dir) is not None,
        addresses=addresses,
    )


def redis_share(*, actor: Actor, host: str, port: int) -> None:
    """Opens it on one of this machine's addresses, without TLS. Raises ``InvitationError``."""
    _ensure_private()
    if host not in reached_at(""):
        raise InvitationError(f"{host!r} is none of this machine's addresses")
    if not LEAST_SHARE_PORT <= port <= MAX_SHARE_PORT:
        raise InvitationError(f"use a port from {LEAST_SHARE_PORT} to {MAX_SHARE_PORT}")
    if _policy().share_address:
        raise InvitationError("it is open already")
    share = Share(host=host, port=port)
    try:
        keep_share(settings.CONFIG.data_dir, share)
    except OSError as error:
        raise InvitationError(f"the data directory cannot be written: {error}") from error
    try:
        _listen(share)
    except InvitationError:
        forget_share(settings.CONFIG.data_dir)
        raise
    share_record(actor=actor, address=share.address, is_tls=False, certificate="")


def redis_unshare(*, actor: Actor) -> None:
    """Connected hosts stay until their connection ends. Raises ``InvitationError``."""
    _ensure_private()
    if find_share(settings.CONFIG.data_dir) is None:
        raise InvitationError("it was not opened from here: start serve without --share")
    _listen(None)
    forget_share(settings.CONFIG.data_dir)
    share_record(actor=actor, address="", is_tls=False, certificate="")


def _listen(share: Share | None) -> None:
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
    if not _is_private():
        raise InvitationError("only the private Redis of serve can be opened from here")


def _is_private() -> bool:
    """Whether Redis is ``serve``'s own in this data directory."""
    url: str = settings.CONFIG.redis_url
    return private_redis_url(settings.CONFIG.data_dir) == url
