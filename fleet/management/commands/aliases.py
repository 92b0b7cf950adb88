from __future__ import annotations

from fleet.management import verbs
from fleet.nouns import ALIASES


class Command(verbs.Command):
    help = "Aliases: other names of models."
    subcommands = (
        verbs.List(ALIASES, "all aliases", columns=verbs.cells("name", "model")),
        verbs.Show(ALIASES, "one alias"),
        verbs.Add(ALIASES, "give a model another name", positional=("name", "model")),
        verbs.Change(ALIASES, "point an alias at another model"),
        verbs.Remove(ALIASES, "remove an alias"),
    )
