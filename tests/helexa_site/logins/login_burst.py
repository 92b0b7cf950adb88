"""A program, run by ``test_databases``: many guesses of one user's password at the same time.

Migrates ``DATABASE_URL`` first. No password is done with before each guess is either looked at or
answered, as if looking took very long. Prints one JSON object: how many were sent, how many
passwords were looked at, and the answers' statuses.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import django
from django.core.management import call_command

NUM_GUESSES = 12
LIMIT_S = 90


def main() -> None:
    django.setup()
    call_command("migrate", verbosity=0)

    from django.contrib.auth.backends import ModelBackend
    from django.db import connection
    from django.test import Client

    counts, changed = Counter[str](), Condition()

    def look(*_: object, **__: object) -> None:
        """Stands where the password is looked at, which is always wrong."""
        with changed:
            counts["looked at"] += 1
            changed.notify_all()
            changed.wait_for(lambda: counts.total() >= NUM_GUESSES, LIMIT_S)

    def send(number: int) -> int:
        try:
            data = {"username": "alice", "password": f"guess {number}"}
            response = Client(headers={"host": "localhost"}).post("/admin/login/", data)
        finally:
            connection.close()
            with changed:
                counts["answered"] += 1
                changed.notify_all()
        return response.status_code

    ModelBackend.authenticate = look
    with ThreadPoolExecutor(NUM_GUESSES) as pool:
        statuses = list(pool.map(send, range(NUM_GUESSES)))
    found = {"num_sent": NUM_GUESSES, "num_looked_at": counts["looked at"], "statuses": statuses}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
