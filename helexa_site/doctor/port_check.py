"""The ports: free, or held by this instance of helexa, which answers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from helexa_site.bootstrap.arguments import reachable_host
from helexa_site.bootstrap.serving.ports import try_to_listen
from helexa_site.doctor.findings import Finding, failed, ok
from helexa_site.instance import INSTANCE_HEADER, known_instance_id
from inference.settings.gateway import MetricsListen

CHECK = "ports"
TIMEOUT_S = 5.0
SIGNS = {"/health": b'"status"', "/metrics": b"helexa_"}
"""What an answer of any helexa contains."""


class Holder(Enum):
    """Who listens on a port."""

    OURS = "ours"
    ANOTHER_INSTANCE = "another instance"
    OTHER = "another program"


def port_findings(
    data_dir: Path, host: str, port: int, metrics: MetricsListen | None
) -> Iterator[Finding]:
    instance = known_instance_id(data_dir)
    yield _port(instance, host, port, "/health", "a gateway")
    if metrics is not None:
        yield _port(instance, metrics.host, metrics.port, "/metrics", "a gateway's metrics")


def _port(instance: str | None, host: str, port: int, path: str, what: str) -> Finding:
    if (error := try_to_listen(host, port)) is None:
        return ok(CHECK, f"{port} on {host} is free")
    match _holder(instance, reachable_host(host), port, path):
        case Holder.OURS:
            return ok(CHECK, f"{what} answers on {port} of {host}")
        case Holder.ANOTHER_INSTANCE:
            return failed(
                CHECK,
                f"{port} on {host} is {what} of another helexa, with another data directory",
                "stop that one, choose another port, or set HELEXA_DATA_DIR to its directory",
            )
        case Holder.OTHER:
            return failed(
                CHECK,
                f"{port} on {host} cannot be listened on: {error.strerror or error}",
                f"see who has it (ss -ltnp sport = :{port}), or choose another port",
            )


def _holder(instance: str | None, host: str, port: int, path: str) -> Holder:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if SIGNS[path] not in answer.read(1 << 20):
            return Holder.OTHER
        is_ours = answer.getheader(INSTANCE_HEADER) == instance
        return Holder.OURS if is_ours else Holder.ANOTHER_INSTANCE
    except (OSError, http.client.HTTPException):
        return Holder.OTHER
    finally:
        connection.close()
