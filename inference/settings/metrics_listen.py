"""Reads where a gateway's metrics are served: ``HELEXA_METRICS_LISTEN``. Pure.

(not set)         the gateway's host, port 31314
9100, :9100       the gateway's host, port 9100
10.0.0.5          port 31314 there
10.0.0.5:9100, [::1]:9100
off, (empty)      nowhere
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_PORT = 31314
MAX_PORT = 65535
OFF_WORDS = frozenset({"", "off", "0", "no", "false", "none"})
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+))?(?::(?P<port>\d+))?")


class MetricsListenError(ValueError):
    """It is not like HOST, HOST:PORT, :PORT or off."""


@dataclass(frozen=True, slots=True)
class MetricsListen:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MetricsSetting:
    """The operator's choice of where metrics are served. ``host`` ``None``: the gateway's."""

    is_on: bool = True
    host: str | None = None
    port: int = DEFAULT_PORT

    def at(self, gateway_host: str) -> MetricsListen | None:
        """``None``: nowhere."""
        return MetricsListen(self.host or gateway_host, self.port) if self.is_on else None


METRICS_OFF = MetricsSetting(is_on=False)


def parse_metrics_listen(word: str | None) -> MetricsSetting:
    """``None``: it is not set. Raises ``MetricsListenError``."""
    if word is None:
        return MetricsSetting()
    word = word.strip()
    if word.lower() in OFF_WORDS:
        return METRICS_OFF
    if word.isdigit():
        word = f":{word}"
    found = ADDRESS.fullmatch(word)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= MAX_PORT:
        raise MetricsListenError(f"{word!r} is not like 127.0.0.1:{DEFAULT_PORT}, :9100 or off")
    host = found["host"]
    return MetricsSetting(host=host.strip("[]") if host else None, port=port)
