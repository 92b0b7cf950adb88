"""Models put into a running server's catalogue, over its REST API."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import httpx

from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, wait_until

IMPORTS = "from fleet import services; from metering.actor import COMMAND\n"
MAKE_KEY = """
from metering.services import account_create, key_create
account = account_create(actor=COMMAND, name="operators")
print(key_create(actor=COMMAND, account=account, scopes=["fleet:write"]).key)
"""


def create_model(helexa: Serve, *, name: str, **fields: object) -> None:
    """Returns when the gateway knows it."""
    operate(helexa, "POST", "/api/catalogue", name=name, **fields)
    wait_until_offered(helexa, name, 200)


def operate(helexa: Serve, method: str, path: str, **body: object) -> None:
    response = httpx.request(
        method,
        helexa.url + path,
        json=body,
        headers={"Authorization": f"Bearer {operator_key(helexa)}"},
        timeout=WAIT_TIMEOUT_S,
    )
    assert response.is_success, response.text


@cache
def operator_key(helexa: Serve) -> str:
    """A key that may change the fleet. The first who needs it makes it: that takes a process, which
    takes seconds to start."""
    return run(helexa, MAKE_KEY).strip()


def run(helexa: Serve, code: str) -> str:
    """What it prints, in Django's shell on the server's machine."""
    command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), "shell", "-v", "0", "-c"]
    done = subprocess.run(
        [*command, IMPORTS + code],
        env=helexa.find("gateway").environ(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=WAIT_TIMEOUT_S,
    )
    return done.stdout


def wait_until_offered(helexa: Serve, name: str, status: int) -> None:
    url = f"{helexa.url}/v1/models/{name}"
    wait_until(lambda: httpx.get(url, timeout=30.0).status_code == status, "the catalogue is read")
