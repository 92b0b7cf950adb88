"""``manage.py members``: people in accounts."""

from __future__ import annotations

from fleet.management import verbs
from metering.nouns import MEMBERS


class Command(verbs.Command):
    help = "Members: people in accounts, as owner, member or viewer."
    subcommands = (
        verbs.List(MEMBERS, "people in accounts", columns=verbs.cells("account", "user", "role")),
        verbs.Show(MEMBERS, "one person's role in an account"),
        verbs.Add(MEMBERS, "add a user to an account", positional=("account", "user")),
        verbs.Change(MEMBERS, "give a member another role"),
        verbs.Remove(MEMBERS, "remove a member from an account"),
    )
