from __future__ import annotations

from argparse import ArgumentParser

from fleet.management import verbs
from fleet.nouns import INVITATIONS, NEURONS, POLICY
from fleet.words import size_text, total_text
from helexa_site.program import installation, neuron_program

EFFECTS = {
    "drain": "takes no more loads and requests, but for models that are moving elsewhere",
    "resume": "takes loads and requests; what was loaded before its drain is loaded again",
    "admit": "is admitted: it takes loads and requests",
    "refuse": "is refused: it gets no more loads and requests",
}
MAX_NAMED = 8


class SetDesiredState(verbs.Do):
    def text(self, run: verbs.Run, answer: verbs.Row) -> str:
        within_s = self.body(run).get("within_s")
        end = {None: "", 0: ", and is ended now"}.get(
            within_s, f", and is ended after {within_s} s"
        )
        return f"{self.row_id(run)} {EFFECTS[self.name]}{what_runs(answer)}{end}."


def add_drain_arguments(parser: ArgumentParser) -> None:
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--within",
        dest="within_s",
        metavar="SECONDS",
        type=int,
        help="end what still runs there after so long; without it, it finishes",
    )
    ends.add_argument(
        "--now", dest="within_s", action="store_const", const=0, help="end what runs there"
    )


def what_runs(neuron: verbs.Row) -> str:
    if neuron["status"] == "away":
        return ", once it is back: it is away now"
    at_work = ", ".join(map(_at_work, neuron["at_work"]))
    if not at_work:
        return "; nothing runs there now"
    named, more = neuron["requests"][:MAX_NAMED], neuron["requests"][MAX_NAMED:]
    requests = f": {', '.join(named)}" if named else ""
    return f"; at work there now: {at_work}{requests}" + (f" and {len(more)} more" if more else "")


def _at_work(replica: verbs.Row) -> str:
    num_requests = replica["num_requests"]
    if not num_requests:
        return f"{replica['model']} ({replica['status']})"
    return f"{replica['model']} ({num_requests} request{'s' * (num_requests > 1)})"


class Invite(verbs.Add):
    """Only the line goes to standard output."""

    def show(self, run: verbs.Run, row: verbs.Row) -> None:
        if not run.options["json"]:
            where = installation().value
            void = "; its earlier line is void from now on" if row["voids_earlier"] else ""
            run.stderr.write(f"On {row['neuron']}, {where} (shown this once{void}):")
        run.show(row, f"{neuron_program()} neuron --join {row['join']}")


def _devices(neuron: verbs.Row) -> str:
    return "\n".join(
        f"{device['id']} {device['name']}, {size_text(device['free_memory_bytes'])} of "
        f"{total_text(device['total_memory_bytes'], device['installed_memory_bytes'])} free"
        for device in neuron["devices"]
    )


LISTED: verbs.Columns = {
    "neuron": lambda neuron: neuron["name"],
    "status": lambda neuron: neuron["status"],
    "devices": _devices,
    "models": lambda neuron: ", ".join(neuron["replicas"]),
    "version": lambda neuron: neuron["version"],
    "problems": lambda neuron: "; ".join(neuron["problems"]),
}
INVITED = verbs.cells("neuron", "invited_by", "invited_at", "cut_off_at", "cut_off_reason")
DEVICES = verbs.cells(
    *("id", "name", "free_memory_bytes", "total_memory_bytes", "installed_memory_bytes")
)


class Policy(verbs.Change):
    has_id = False

    def run(self, run: verbs.Run) -> None:
        body = verbs.given_fields(run.options, self.noun.changeable)
        policy = run.ask("PATCH" if body else "GET", self.noun.path, body or None)
        run.show(policy, verbs.pairs_text(policy))


class Command(verbs.Command):
    help = "Neurons: the hosts that models are loaded on."
    subcommands = (
        verbs.List(NEURONS, "all neurons, with their devices and models", columns=LISTED),
        verbs.Show(NEURONS, "one neuron, its devices and its models", tables={"devices": DEVICES}),
        Invite(
            INVITATIONS,
            "print a line that makes another host a neuron",
            name="invite",
            positional=("neuron",),
        ),
        verbs.Remove(
            INVITATIONS,
            "shut an invited host out",
            name="revoke",
            done="{id} can reach Redis no more.",
        ),
        verbs.List(INVITATIONS, "hosts that were invited", name="invitations", columns=INVITED),
        verbs.Show(INVITATIONS, "one invitation of a host", name="invitation"),
        Policy(
            POLICY,
            "show or change how an unknown neuron is admitted: automatic or click",
            name="policy",
        ),
        SetDesiredState(NEURONS, "let a neuron belong to the fleet", name="admit"),
        SetDesiredState(NEURONS, "place and route nothing there", name="refuse"),
        SetDesiredState(
            NEURONS,
            "place nothing new there; what runs finishes, or ends in time",
            name="drain",
            arguments=add_drain_arguments,
            body=lambda run: run.given("within_s"),
        ),
        SetDesiredState(NEURONS, "end a drain", name="resume"),
        verbs.Remove(
            NEURONS,
            "forget a neuron that is away, with its load jobs",
            done="{id} is forgotten.",
        ),
    )
