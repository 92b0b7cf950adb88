"""``neurons invite``, ``revoke``, ``invitations`` and ``invitation``."""

from __future__ import annotations

from fleet.management.rows import AddRow, ListRows, RemoveRow, Row, ShowRow, cells
from fleet.management.subcommands import Run
from fleet.nouns.of_fleet import INVITATIONS
from helexa_site.program import installation, neuron_program


class Invite(AddRow):
    """The line alone goes to standard output."""

    def show(self, run: Run, row: Row) -> None:
        if not run.options["json"]:
            where = installation().value
            void = "; its earlier line is void from now on" if row["voids_earlier"] else ""
            run.stderr.write(f"On {row['neuron']}, {where} (shown this once{void}):")
        run.show(row, f"{neuron_program()} neuron --join {row['join']}")


INVITE = Invite(
    noun=INVITATIONS,
    name="invite",
    help="print a line that makes another host a neuron",
    positional=("neuron",),
)
REVOKE = RemoveRow(
    noun=INVITATIONS,
    name="revoke",
    help="shut an invited host out",
    done="{id} can reach Redis no more.",
)
LIST_INVITATIONS = ListRows(
    noun=INVITATIONS,
    name="invitations",
    columns=cells("neuron", "invited_by", "invited_at", "cut_off_at", "cut_off_reason"),
    help="hosts that were invited",
)
SHOW_INVITATION = ShowRow(noun=INVITATIONS, name="invitation", help="one invitation of a host")
