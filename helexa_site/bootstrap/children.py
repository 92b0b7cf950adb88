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
GATEWAY_GRACE_S = 1.4
"""After its drain."""
CONTROL_GRACE_S = 4.0
NEURON_GRACE_S = 3.8
REDIS_GRACE_S = 0.5


def redis_spec(server: PrivateRedis) -> ChildSpec:
    environment = environment_for(Role.OTHER, os.environ)
    return ChildSpec(
        name="redis",
        command=server.command,
        environment=environment,
        tier=0,
        stop_grace_s=REDIS_GRACE_S,
    )


def neuron_spec(*, expects_load: bool = False) -> ChildSpec:
    words = ["inference.neuron", "--name", default_neuron_name()]
    if expects_load:
        words.append("--expects-load")
    # The gateway has ended its requests before the neuron is stopped.
    return _module(1, words, Role.NEURON, NEURON_GRACE_S, {NEURON_DRAIN_S.name: "0"})


def control_spec() -> ChildSpec:
    return _module(2, ["helexa_site.control"], Role.CONTROL, CONTROL_GRACE_S)


def gateway_spec(host: str, port: int) -> ChildSpec:
    words = ["helexa_site", "gateway", "--host", host, "--port", str(port)]
    return _module(3, words, Role.GATEWAY, DRAIN_SECONDS.read(os.environ) + GATEWAY_GRACE_S)


def _module(
    tier: int,
    words: list[str],
    role: Role,
    stop_grace_s: float,
    variables: dict[str, str] | None = None,
) -> ChildSpec:
    return ChildSpec(
        name=role.name.lower(),
        command=(sys.executable, "-m", *words),
        environment=child_environment(role) | {"PYTHONUNBUFFERED": "1"} | (variables or {}),
        tier=tier,
        stop_grace_s=stop_grace_s,
        shown=WARNINGS,
    )
