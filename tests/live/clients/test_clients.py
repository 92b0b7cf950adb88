"""Every client of docs/clients.md, in a folder that scripts/try-clients installed.

scripts/try-clients --dir CLIENTS
HELEXA_CLIENTS_DIR=CLIENTS manage.py test -m slow tests/live/clients/test_clients.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.clients.command import try_clients
from tests.live.clients.installed import Clients

CLIENTS_DIR = os.environ.get("HELEXA_CLIENTS_DIR")


@pytest.mark.slow
@pytest.mark.skipif(CLIENTS_DIR is None, reason="HELEXA_CLIENTS_DIR names no folder of clients")
def test_every_client_works(tmp_path: Path) -> None:
    assert CLIENTS_DIR is not None
    clients = Clients(Path(CLIENTS_DIR))
    clients.take_programs()
    rows = list(try_clients(clients, tmp_path))
    assert rows
    assert [row for row in rows if row.problem is not None] == []
