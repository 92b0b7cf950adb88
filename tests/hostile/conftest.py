"""A hostile neuron: all that a host may do that was invited, and what comes of it for the others.

    test_commands      every command of Redis on every family of keys, as the host's user
    test_values        every kind of value under every key that it may write
    test_answers       every event with every field wrong, in every place of every kind of request
    test_heartbeats    every field of its heartbeat wrong, in the snapshot and in the database, and
                       of what else it lists: held requests, downloads, engine logs
    test_floods        too many bytes and keys: it is cut off with its reason, and no other is; and
                       what its connections can make Redis hold before the control has looked
    test_whole_server  every attack of ``hostile_host.py`` beside honest clients

Keys and messages are not listed here: ``wrong.py`` finds the keys in ``inference.protocol.keys``
and makes wrong messages from their types, so that a new one is tried or fails a test.
How gateways, controls and the ledger are built is as in their own tests, whose fixtures these are.
"""

from __future__ import annotations

from tests.fleet.conftest import _fresh_catalogue_cache, build  # noqa: F401
from tests.fleet.services.invited_hosts import shared_redis  # noqa: F401
from tests.inference.gateway.conftest import (  # noqa: F401
    catalogue,
    client,
    config,
    directory,
    gateway,
    ledger,
    make_gateway,
    neuron,
    redis_client,
)

EVIL = "evil"
MB = 1_000_000
MAX_GROWTH_BYTES = 50 * MB
"""What an attack may make the gateway, the control or Redis grow by."""
