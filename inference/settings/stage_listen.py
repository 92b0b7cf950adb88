"""Reads where stages for other neurons' engines listen: ``HELEXA_STAGE_LISTEN``. Pure.

10.0.0.5                                  any free port there
10.0.0.5:7400, [2001:db8::5]:7400
10.0.0.5:7400-7499, box.lan:7400-7499     one of these ports
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_PORT = 65535
ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+)(?::(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?)?"
)


@dataclass(frozen=True, slots=True)
class StageListen:
    host: str
    """A name or an address of this host that other hosts reach it by."""
    first_port: int | None = None
    """``None``: any free port."""
    last_port: int | None = None

    @property
    def ports(self) -> Sequence[int]:
        """The ports to try, in order; 0 is any free one."""
        if self.first_port is None:
            return [0]
        return range(self.first_port, (self.last_port or self.first_port) + 1)


@dataclass(frozen=True, slots=True)
class StageAddress:
    @property
    def rule(self) -> str:
        return "HOST, HOST:PORT or HOST:FIRST-LAST, with an address that other hosts reach"

    def parse(self, word: str) -> StageListen:
        found = ADDRESS.fullmatch(word.strip())
        if found is None:
            raise ValueError
        host = found["host"].strip("[]")
        if _is_every_address(host):
            raise ValueError(f"{host} is no address that another host can connect to")
        if found["first"] is None:
            return StageListen(host)
        first = int(found["first"])
        last = int(found["last"] or first)
        if not 1 <= first <= last <= MAX_PORT:
            raise ValueError(f"ports are from 1 to {MAX_PORT}, the lower one first")
        return StageListen(host, first, last)


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
