"""``keep ARCHIVE`` and ``look``, on the database that ``DATABASE_URL`` names, in a process of its
own: settings and the signing key are read once."""

from __future__ import annotations

import json
import sys

import django
import msgspec
from django.core.management import call_command


def keep(archive: str) -> None:
    """Makes the archive of a release: migrates, writes, and backs up."""
    from tests.upgrade.look import Kept, kept_file, seen
    from tests.upgrade.release_data import write

    call_command("migrate", verbosity=0)
    known = write()
    kept_file().write_bytes(msgspec.json.encode(Kept(known=known, seen=seen(known))))
    call_command("backup", archive)


def look() -> None:
    """Prints the kept view of the data, today's, and what one more request adds to the budgets."""
    from tests.upgrade.look import Kept, kept_file, seen, spent_more

    call_command("migrate", check_unapplied=True, stdout=sys.stderr)
    call_command("makemigrations", check_changes=True, dry_run=True, stdout=sys.stderr)
    kept = msgspec.json.decode(kept_file().read_bytes(), type=Kept)
    now = seen(kept.known)
    print(json.dumps({"then": kept.seen, "now": now, "spent_more": spent_more(kept.known)}))


if __name__ == "__main__":
    django.setup()
    {"keep": keep, "look": look}[sys.argv[1]](*sys.argv[2:])
