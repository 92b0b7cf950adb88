"""The processes of one serve, as specs: what each runs, how long its end may take.

Stopped in the reverse of the order in which they start; the graces add up to less than 10 s.
"""

from __future__ import annotations

import os
import re
import sys

from helexa_site.bootstrap.arguments import default_neuron_name
from helexa_site.bootstrap.child import ChildSpec
from helexa_site.bootstrap.environment import REPOSITORY_DIR
from helexa_site.bootstrap.redis_server import PrivateRedis

WARNINGS = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
GATEWAY_GRACE_S = 3.5
CONTROL_GRACE_S = 1.0
NEURON_GRACE_S = 4.6
REDIS_GRACE_S = 0.5


def child_environment() -> dict[str, str]:
    """Ours, with the checkout on the import path wherever serve was started from."""
    paths = [str(REPOSITORY_DIR), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
    }


def redis_spec(server: PrivateRedis) -> ChildSpec:
    return ChildSpec(
        name="redis",
        command=server.command,
        environment=dict(os.environ),
        stop_grace_s=REDIS_GRACE_S,
    )


def neuron_spec() -> ChildSpec:
    return _python_spec(
        "neuron",
        ("-m", "inference.neuron", "--name", default_neuron_name()),
        stop_grace_s=NEURON_GRACE_S,
    )


def control_spec() -> ChildSpec:
    return _python_spec(
        "control",
        (
            *("-m", "celery", "-A", "helexa_site.celery", "worker", "-Q", "control"),
            *("--pool", "solo", "--hostname", "control@%h", "--loglevel", "INFO"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        stop_grace_s=CONTROL_GRACE_S,
    )


def gateway_spec(host: str, port: int) -> ChildSpec:
    return _python_spec(
        "gateway",
        (str(REPOSITORY_DIR / "manage.py"), "gateway", "--host", host, "--port", str(port)),
        stop_grace_s=GATEWAY_GRACE_S,
    )


def _python_spec(name: str, arguments: tuple[str, ...], *, stop_grace_s: float) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=(sys.executable, *arguments),
        environment=child_environment(),
        stop_grace_s=stop_grace_s,
        shown=WARNINGS,
    )
