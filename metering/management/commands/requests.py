"""``manage.py requests``: records of requests."""

from __future__ import annotations

from fleet.management import verbs
from metering.nouns import REQUESTS

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
LISTED: verbs.Columns = {
    **verbs.cells("id", "at", "account"),
    "key": lambda row: row["key_name"] or row["key"],
    "model": lambda row: row["model"] or row["model_asked"],
    **verbs.cells("neuron", "endpoint", "status", "outcome"),
    "code": lambda row: row["code"] or "",
    "ms": lambda row: row["duration_ms"],
    "tokens": lambda row: row["prompt_tokens"] + row["completion_tokens"],
}


class ListRequests(verbs.List):
    """One page: there may be a million."""

    def run(self, run: verbs.Run) -> None:
        page = run.ask("GET", self.list_path(run, limit=run.options["limit"]))
        run.show(page["data"], verbs.rows_text(self.columns, page["data"]))
        if page["has_more"] and not run.options["json"]:
            run.stderr.write("There are older ones: --limit, or --until with a time.")


class ShowRequest(verbs.Show):
    def run(self, run: verbs.Run) -> None:
        if not run.options["body"]:
            super().run(run)
            return
        captured = run.ask("GET", f"{self.path(run)}/capture")
        row = self.row(run)
        texts = {name: text for name, text in captured.items() if name != "id" and text}
        bodies = [f"{name}:\n{text}" for name, text in texts.items()]
        run.show({**row, "capture": captured}, "\n\n".join([self.text(row), *bodies]))


class Command(verbs.Command):
    help = "What became of each request that reached a gateway, refused ones too."
    subcommands = (
        ListRequests(
            REQUESTS,
            "requests and how they ended, newest first",
            columns=LISTED,
            arguments=lambda parser: parser.add_argument(
                "--limit",
                type=int,
                default=DEFAULT_LIMIT,
                metavar="N",
                help=f"at most so many, 1 to {MAX_LIMIT} (%(default)s)",
            ),
        ),
        ShowRequest(
            REQUESTS,
            "all that is recorded of one request",
            arguments=lambda parser: parser.add_argument(
                "--body", action="store_true", help="its captured bodies too, which is audited"
            ),
        ),
    )
