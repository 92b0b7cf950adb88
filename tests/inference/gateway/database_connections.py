"""A program, run by ``test_databases``: which connections to PostgreSQL a gateway's queries take.

Prints one JSON object: the backends that 50 queries used, what queries come to when every backend
was ended under them, and how many backends are left of Django's pages.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

import psycopg
from django.conf import settings
from django.core.management import call_command

NUM_QUERIES = 50
NUM_PAGES = 10
END_LIMIT_S = 120
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def backend() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), pg_sleep(0.01)")
        pid: int = cursor.fetchone()[0]
        return pid


async def backends_left(control: psycopg.Connection[Any], *, besides: set[int]) -> set[int]:
    """A backend whose connection was closed ends soon after."""
    deadline_s = time.monotonic() + END_LIMIT_S
    while True:
        found = {pid for (pid,) in control.execute(f"SELECT pid {OTHERS}").fetchall()}
        left = found - besides
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(0.1)


async def main() -> dict[str, Any]:
    # Settings, and what the gateway sets up beside them.
    from helexa_site.asgi import django_application
    from inference.gateway.database import DatabaseThreads
    from tests.inference.gateway.asgi_client import AsgiClient

    await asyncio.to_thread(call_command, "migrate", verbosity=0)
    threads = DatabaseThreads("test")
    used = await asyncio.gather(*(threads.query(backend) for _ in range(NUM_QUERIES)))
    with psycopg.connect(settings.CONFIG.database_url, autocommit=True) as control:
        num_ended = len(control.execute(f"SELECT pg_terminate_backend(pid) {OTHERS}").fetchall())
        again = await asyncio.gather(*(threads.query(backend) for _ in range(NUM_QUERIES)))
        client = AsgiClient(django_application)
        headers = {"host": "localhost", "cookie": "sessionid=an-unknown-session"}
        statuses = {(await client.get("/admin/", headers=headers)).status for _ in range(NUM_PAGES)}
        left = await backends_left(control, besides=set(again))
    return {
        "used": sorted(set(used)),
        "num_ended": num_ended,
        "again": sorted(set(again)),
        "statuses": sorted(statuses),
        "left_of_pages": sorted(left),
    }


if __name__ == "__main__":
    import django

    gc.disable()  # a connection that is closed when it happens to be collected is one left behind
    django.setup()
    print(json.dumps(asyncio.run(main())))
