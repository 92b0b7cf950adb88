"""The processes of one serve, with commands and stop timeouts, in the order of their start.

They stop in the reverse order. Without open answers that takes less than 10 s:

    gateway   drains: answers are finished, with everything that they need still there
    control
    neuron    ends its engines
    redis
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from helexa_site.bootstrap.arguments import default_neuron_name
from helexa_site.bootstrap.redis_server import PrivateRedis
from helexa_site.bootstrap.supervisor import ChildSpec
from inference.environment import Role, child_environment, environment_for
from inference.settings.gateway import DRAIN_SECONDS
from inference.settings.neuron import NEURON_DRAIN_S

GATEWAY_GRACE_S = 1.4
"""After its drain."""
CONTROL_GRACE_S = 4.0
NEURON_GRACE_S = 3.8
REDIS_GRACE_S = 0.5


def redis_spec(server: PrivateRedis) -> ChildSpec:
    return ChildSpec(
        name="redis",
        command=server.command,
        environment=environment_for(Role.OTHER, os.environ),
        stop_grace_s=REDIS_GRACE_S,
    )


def neuron_spec(*, expects_load: bool = False) -> ChildSpec:
    words = ["inference.neuron", "--name", default_neuron_name()]
    if expects_load:
        words.append("--expects-load")
    # The gateway has ended its requests before the neuron is stopped.
    return _module(words, Role.NEURON, NEURON_GRACE_S, {NEURON_DRAIN_S.name: "0"})


def control_spec() -> ChildSpec:
    return _module(["helexa_site.control"], Role.CONTROL, CONTROL_GRACE_S)


def gateway_spec(host: str, port: int) -> ChildSpec:
    words = ["helexa_site", "gateway", "--host", host, "--port", str(port)]
    return _module(words, Role.GATEWAY, DRAIN_SECONDS.read(os.environ) + GATEWAY_GRACE_S)


def _module(
    words: list[str], role: Role, stop_grace_s: float, variables: Mapping[str, str] | None = None
) -> ChildSpec:
    return ChildSpec(
        name=role.name.lower(),
        command=(sys.executable, "-m", *words),
        environment=child_environment(role) | {"PYTHONUNBUFFERED": "1"} | dict(variables or {}),
        stop_grace_s=stop_grace_s,
    )
