"""A hostile neuron: all that a host may do that was invited, and what comes of it for the others.

Keys and messages are not listed here: ``wrong.py`` finds the keys in ``inference.protocol.keys``
and makes wrong messages from their types, so that a new one is tried or fails a test. The fixtures
are those of the gateways', controls' and ledger's own tests.
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
