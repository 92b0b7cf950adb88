"""The ports: free, or held by a helexa that answers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

from helexa_site.bootstrap.arguments import reachable_host
from helexa_site.bootstrap.ports import try_to_listen
from helexa_site.doctor.findings import Finding, failed, ok
from inference.settings.metrics_listen import MetricsListen

CHECK = "ports"
TIMEOUT_S = 5.0
SIGNS = {"/health": b'"status"', "/metrics": b"helexa_"}
"""What an answer of ours holds."""


def port_findings(host: str, port: int, metrics: MetricsListen | None) -> Iterator[Finding]:
    yield _port(host, port, "/health", "a gateway")
    if metrics is not None:
        yield _port(metrics.host, metrics.port, "/metrics", "a gateway's metrics")


def _port(host: str, port: int, path: str, what: str) -> Finding:
    if (error := try_to_listen(host, port)) is None:
        return ok(CHECK, f"{port} on {host} is free")
    if _answers_as_ours(reachable_host(host), port, path):
        return ok(CHECK, f"{what} answers on {port} of {host}")
    return failed(
        CHECK,
        f"{port} on {host} cannot be listened on: {error.strerror or error}",
        f"see who has it (ss -ltnp sport = :{port}), or choose another port",
    )


def _answers_as_ours(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return SIGNS[path] in connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
