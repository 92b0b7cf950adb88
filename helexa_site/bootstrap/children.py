"""The processes of one serve, as specs with commands and stop timeouts.

Stops tier by tier. Without open answers that takes less than 10 s:

    3  gateway   drains: answers are finished, with everything that they need still there
    2  control
    1  neuron    ends its engines
    0  redis
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

from helexa_site.bootstrap.arguments import default_neuron_name
from helexa_site.bootstrap.redis_server import PrivateRedis
from helexa_site.bootstrap.supervisor import ChildSpec
from inference.environment import Role, child_environment, environment_for
from inference.settings.gateway import DRAIN_SECONDS
from inference.settings.neuron import NEURON_DRAIN_S

WARNINGS = re.compile(
    r"^\d{4}-\d\d-\d\d \S+ (WARNING|ERROR|CRITICAL) |"
    r'^\{"ts": "[^"]*", "level": "(WARNING|ERROR|CRITICAL)"'
)
"""Records of that level, as ``inference.logs`` writes them; not lines that contain the word."""
GATEWAY_TIER, CONTROL_TIER, NEURON_TIER, REDIS_TIER = 3, 2, 1, 0
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
        tier=REDIS_TIER,
        stop_grace_s=REDIS_GRACE_S,
    )


def neuron_spec(*, expects_load: bool = False) -> ChildSpec:
    """The gateway has ended its requests before the neuron is stopped."""
    options = ("--expects-load",) if expects_load else ()
    spec = _python_spec(
        "neuron",
        ("-m", "inference.neuron", "--name", default_neuron_name(), *options),
        role=Role.NEURON,
        tier=NEURON_TIER,
        stop_grace_s=NEURON_GRACE_S,
    )
    return replace(spec, environment={**spec.environment, NEURON_DRAIN_S.name: "0"})


def control_spec() -> ChildSpec:
    return _python_spec(
        "control",
        ("-m", "helexa_site.control"),
        role=Role.CONTROL,
        tier=CONTROL_TIER,
        stop_grace_s=CONTROL_GRACE_S,
    )


def gateway_spec(host: str, port: int) -> ChildSpec:
    return _python_spec(
        "gateway",
        ("-m", "helexa_site", "gateway", "--host", host, "--port", str(port)),
        role=Role.GATEWAY,
        tier=GATEWAY_TIER,
        stop_grace_s=DRAIN_SECONDS.read(os.environ) + GATEWAY_GRACE_S,
    )


def _python_spec(
    name: str, arguments: tuple[str, ...], *, role: Role, tier: int, stop_grace_s: float
) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=(sys.executable, *arguments),
        environment=child_environment(role) | {"PYTHONUNBUFFERED": "1"},
        tier=tier,
        stop_grace_s=stop_grace_s,
        shown=WARNINGS,
    )
