"""Shuts out an invited neuron that misbehaves: a gateway for faults in its answers, the control for
too many bytes or keys in Redis.

Redis has no limit of bytes for a user, so the control measures the keys of each invited neuron, the
gateways' messages to it, and its connections' buffers. A neuron with the fleet's own password
cannot be shut out of Redis: its faults are logged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from django.db import transaction
from django.utils import timezone

from fleet.live import reading as live
from fleet.models import Invitation
from fleet.redis_users import USER_PREFIX, user_name
from fleet.services.heartbeats import problem_record
from fleet.services.invitations import redis_users_apply
from inference.protocol.keys import (
    NEURON_KEYS,
    gateways_write,
    neuron_of_key,
    queue_keys,
)
from metering.audit import CONTROL, Actor, audit_entry_create

logger = logging.getLogger(__name__)

MAX_NEURON_BYTES = 128 * 1024 * 1024
"""The most bytes of a neuron's keys. An honest one has some 7 MiB, and 8 MiB of unread events
(``MAX_UNREAD_BYTES``) for each gateway, also for those that it has not yet detected to be dead; in
Redis these take up to a fourth more."""
MAX_NEURON_KEYS = 1000
"""An honest one has six, and a stream for each gateway."""
MAX_SCANNED_KEYS = 20_000
"""The most keys of one scan; the next one, without the neuron with too many keys, sees the rest."""
MAX_UNTAKEN_BYTES = 1024 * 1024 * 1024
"""Limits one neuron's unread frames and images."""
MAX_CONNECTION_BYTES = 16 * 1024 * 1024
"""In all connections of one neuron: incomplete commands, and unread replies. An honest one reads
and writes 4 MiB at once."""
MAX_CONNECTIONS = 500
"""An honest neuron has some twenty. Redis has 10,000 for all by default."""
EXCESS_FOR_S = 10.0
"""How long there may be more of both: an honest neuron reads frames within a second, and images
while it prepares their requests."""
KEYS_A_READ = 500

_excess_since_s: dict[tuple[str, str], float] = {}
"""By neuron and kind of excess."""
KeysByNeuron = defaultdict[str, list[bytes]]


def neuron_cut_off(*, actor: Actor, neuron_name: str, reason: str) -> bool:
    """``False``: it is not invited, or was shut out before."""
    reason = reason[:300]
    _end_connections(neuron_name)
    with transaction.atomic():
        invited = Invitation.objects.filter(neuron_name=neuron_name, cut_off_at=None)
        if not invited.update(cut_off_at=timezone.now(), cut_off_reason=reason):
            return False
        problem_record(neuron_name, f"it was cut off: {reason}. Inviting it again lets it in")
        audit_entry_create(
            actor=actor,
            action="neuron.cut_off",
            object_id=neuron_name,
            detail={"reason": reason},
        )
        transaction.on_commit(lambda: _shut_out(neuron_name))
    logger.error("neuron %s was cut off: %s", neuron_name, reason)
    return True


def oversized_neurons_cut_off(*, client: redis.Redis, now_s: float) -> int:
    """Returns their number. ``now_s``: on a clock that never goes back."""
    invited = _invited()
    if not invited:
        return 0
    try:
        written, sent = _keys_by_neuron(client, invited)
        connections = _connections(client)
        reasons = {
            name: _written_excess(client, written[name])
            or _untaken_excess(name, _num_bytes(client, sent[name]), now_s)
            or _connection_excess(name, connections[name], now_s)
            for name in invited
        }
    except (redis.RedisError, OSError) as error:
        logger.warning("what invited neurons hold of Redis is not measured: %s", error)
        return 0
    return _all_cut_off(reasons)


def flooding_neurons_cut_off(*, client: redis.Redis) -> int:
    """Measures their own keys alone, without grace. Raises ``redis.RedisError``."""
    invited = _invited()
    if not invited:
        return 0
    written, _ = _keys_by_neuron(client, invited)
    return _all_cut_off({name: _written_excess(client, written[name]) for name in invited})


def _invited() -> set[str]:
    return set(Invitation.objects.filter(cut_off_at=None).values_list("neuron_name", flat=True))


def _all_cut_off(reasons: Mapping[str, str]) -> int:
    return sum(
        neuron_cut_off(actor=CONTROL, neuron_name=name, reason=reason)
        for name, reason in reasons.items()
        if reason
    )


def _keys_by_neuron(client: redis.Redis, invited: set[str]) -> tuple[KeysByNeuron, KeysByNeuron]:
    """Keys that each has written, and keys that gateways have written for it."""
    written, sent = KeysByNeuron(list), KeysByNeuron(list)
    for name in invited:
        written[name] += (key.encode() for key in queue_keys(name))
    num_written = 0
    for key in client.scan_iter(match=NEURON_KEYS, count=KEYS_A_READ):
        if (name := neuron_of_key(key)) not in invited:
            continue
        if gateways_write(key):
            sent[name].append(key)
            continue
        written[name].append(key)
        num_written += 1
        if num_written >= MAX_SCANNED_KEYS:
            break
    return written, sent


def _written_excess(client: redis.Redis, names: Sequence[bytes]) -> str:
    if len(names) > MAX_NEURON_KEYS:
        return f"it has written over {MAX_NEURON_KEYS} keys"
    num_bytes = _num_bytes(client, names)
    if num_bytes <= MAX_NEURON_BYTES:
        return ""
    return f"it holds {num_bytes >> 20} MiB of Redis, {MAX_NEURON_BYTES >> 20} at most"


def _untaken_excess(name: str, num_bytes: int, now_s: float) -> str:
    if not _lasts(name, "untaken", num_bytes > MAX_UNTAKEN_BYTES, now_s):
        return ""
    return (
        f"it does not take its requests: {num_bytes >> 20} MiB that were sent to it have been in "
        f"Redis for over {EXCESS_FOR_S:.0f} s, {MAX_UNTAKEN_BYTES >> 20} at most"
    )


def _connection_excess(name: str, sizes: Sequence[int], now_s: float) -> str:
    if len(sizes) > MAX_CONNECTIONS:
        return f"it has {len(sizes)} connections to Redis, {MAX_CONNECTIONS} at most"
    num_bytes = sum(sizes)
    if not _lasts(name, "connections", num_bytes > MAX_CONNECTION_BYTES, now_s):
        return ""
    return (
        f"its connections have held {num_bytes >> 20} MiB of Redis for over {EXCESS_FOR_S:.0f} s, "
        f"{MAX_CONNECTION_BYTES >> 20} at most: it does not read what it asks for"
    )


def _lasts(name: str, what: str, is_excess: bool, now_s: float) -> bool:
    if not is_excess:
        _excess_since_s.pop((name, what), None)
        return False
    if now_s - _excess_since_s.setdefault((name, what), now_s) < EXCESS_FOR_S:
        return False
    del _excess_since_s[name, what]
    return True


def _connections(client: redis.Redis) -> defaultdict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for one in client.client_list():
        if one["user"].startswith(USER_PREFIX):
            found[one["user"].removeprefix(USER_PREFIX)].append(int(one["tot-mem"]))
    return found


def _num_bytes(client: redis.Redis, names: Sequence[bytes]) -> int:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.memory_usage(name, samples=0)
    sizes: list[Any] = pipeline.execute()
    return sum(size or 0 for size in sizes)


def _end_connections(neuron_name: str) -> None:
    """Removes its Redis user at once: until the database has recorded the cut-off, a flooding host
    writes on. If recording fails, the control's next tick makes the user again."""
    try:
        live.redis_client().acl_deluser(user_name(neuron_name))
    except (redis.RedisError, OSError) as error:
        logger.warning("the Redis user of %s is not removed yet: %s", neuron_name, error)


def _shut_out(neuron_name: str) -> None:
    """The Redis user goes first, then the keys, so that nothing is written afterwards."""
    redis_users_apply()
    client = live.redis_client()
    try:
        names = list(client.scan_iter(match=f"helexa:neuron:{neuron_name}:*", count=KEYS_A_READ))
        names += (key.encode() for key in queue_keys(neuron_name))
        for start in range(0, len(names), KEYS_A_READ):
            client.unlink(*names[start : start + KEYS_A_READ])
    except (redis.RedisError, OSError) as error:
        logger.warning("what %s has written is left in Redis: %s", neuron_name, error)
