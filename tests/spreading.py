"""Why pytest-xdist's spreading is customised: with ``loadfile`` each process that gets a file of
the live tests would start a server of its own, which takes longer than most of them. ``loadgroup``
would keep those files together, but part the tests of all others, whose module fixtures each
process would then build.

So a file's tests stay together, and so do the files that use one server. What takes longest comes
first.
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
    """Tests are handed out in this order. Live ones take long and wait much, and those of the whole
    tree start many processes; short ones then fill the processes evenly at the end."""
    file = file_of(item)
    if server := server_of(file):
        return list(SERVERS).index(server)
    is_of_the_tree = file.count("/") == 1
    return len(SERVERS) + (not file.startswith(LIVE)) + (not is_of_the_tree)


def check_servers(items: list[pytest.Item]) -> None:
    """A server ends after the last of the files that are known to use it: see ``ends_with``. Raises
    ``UsageError`` for a test that uses one by a name that ``SERVERS`` lacks."""
    for item in items:
        used = [server for server in SERVERS if server in getattr(item, "fixturenames", ())]
        if used and server_of(file_of(item)) not in used:
            raise pytest.UsageError(
                f"{item.nodeid} uses {used[0]}, and its parameters don't name it"
            )


def ends_with(item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
    """The server that no test after this one asks for. Idle it would take a tenth of a core until
    the end of the run."""
    server = server_of(file_of(item))
    return None if nextitem and server == server_of(file_of(nextitem)) else server


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::", 1)[0]
