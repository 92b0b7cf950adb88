"""How a run is spread over processes: a file's tests stay together, and so do the files that use
one server, which takes longer to start than most of them to run. What takes longest comes first.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
LIVE = "tests/live/"
SERVERS = {
    "shared_server": {"shared_server", "helexa"},
    "scripted_server": {"scripted_server", "hermes", "openai_client", "anthropic_client"},
}
"""Session fixture -> the fixtures that tests know it by. In the order of what takes longest."""


class SpreadByServer(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return server_of(file) or file


@cache
def server_of(file: str) -> str | None:
    """The server that the tests of ``file`` share with other files: a parameter of theirs names it.
    The file is read, since the process that hands tests out has not imported it."""
    if not file.startswith(LIVE):
        return None
    parameters = set(re.findall(r"(\w+):", (REPOSITORY_DIR / file).read_text()))
    return next((server for server, names in SERVERS.items() if parameters & names), None)


def turn(item: pytest.Item) -> int:
    """Tests are handed out in this order. Live ones take long and wait much; short ones then fill
    the processes evenly at the end."""
    file = item.nodeid.split("::", 1)[0]
    if server := server_of(file):
        return list(SERVERS).index(server)
    return len(SERVERS) + (not file.startswith(LIVE))
