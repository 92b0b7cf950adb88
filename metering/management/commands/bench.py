"""``manage.py bench``: measure, report, compare, import."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import close_old_connections

from helexa_site.management.base import QuickCommand
from metering.audit import COMMAND
from metering.bench import results
from metering.bench.importing import file_import
from metering.bench.measures import METRICS, MIN_CHANGE, Verdict
from metering.bench.models import BenchTarget
from metering.bench.sweep import sweep_of
from metering.bench.tables import (
    REPORTS,
    comparison_markdown,
    comparison_rows,
    view_markdown,
    view_rows,
)
from metering.errors import BenchValueError
from metering.output import errors_on_one_line, json_text

REGRESSED_CODE = 1
"""Exit code of ``compare`` where a build got worse."""
ERROR_CODE = 2
"""Its exit code where the samples do not decide, and every subcommand's for errors."""
RESULTS = ("num_ok", "num_failed", "num_cells_done", "left_out")


class Command(QuickCommand):
    help = "Measures models on this fleet's neurons and any other endpoint, build by build."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="command", required=True)
        once = parsers.add_parser("once", help="one sweep: measure what has too few samples")
        _add_sweep(once)
        once.add_argument("--json", action="store_true", help="print JSON")
        _add_sweep(parsers.add_parser("run", help="sweep after sweep, until it is ended"))
        _add_report(parsers.add_parser("report", help="the latest builds' medians"))
        _add_compare(parsers.add_parser("compare", help="two builds or targets, cell by cell"))
        _add_import(parsers.add_parser("import", help="targets or results out of a file"))

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            with errors_on_one_line():
                getattr(self, f"_{options['command']}")(options)
        except CommandError as error:
            error.returncode = ERROR_CODE
            raise

    def _once(self, options: dict[str, Any]) -> None:
        sweep = sweep_of(options, self.stderr.write if options["json"] else self.stdout.write)
        sweep.run()
        if options["json"]:
            self.stdout.write(json_text({name: getattr(sweep, name) for name in RESULTS}))
        if sweep.has_nothing:
            raise CommandError("nothing was measured", returncode=ERROR_CODE)

    def _run(self, options: dict[str, Any]) -> None:
        while True:
            close_old_connections()
            sweep = sweep_of(options, self.stdout.write)
            sweep.run()
            time.sleep(sweep.plan.sweep_interval_s)

    def _report(self, options: dict[str, Any]) -> None:
        filters = results.cell_filters({"target": options["target"]})
        cells = results.latest_of_each(results.cells_list(**filters))
        view = next((name for name in REPORTS if options.get(name)), "summary")
        rows = view_rows(view, cells)
        is_json = options["format"] == "json"
        self.stdout.write(json_text(rows) if is_json else view_markdown(view, rows))

    def _compare(self, options: dict[str, Any]) -> None:
        before, after, comparison = results.compared(
            options["before"],
            options["after"] or "",
            {name: options[name] for name in ("model", "scenario")},
            only_metrics=options["metric"] or METRICS,
            min_change=options["min_change"],
        )
        if not comparison.cells:
            raise BenchValueError("cells", f"{before} and {after} have no cell in common")
        num_regressed = comparison.num_with(Verdict.REGRESSED)
        if options["format"] == "json":
            self.stdout.write(
                json_text(
                    {
                        "before": {"target": before.target, "build": before.build},
                        "after": {"target": after.target, "build": after.build},
                        "regressed": num_regressed,
                        "cells": comparison_rows(comparison),
                    }
                )
            )
        else:
            self.stdout.write(comparison_markdown(comparison, str(before), str(after)))
        # A verdict is no error, and so no ``CommandError``.
        num_cells = len(comparison.cells)
        if num_regressed:
            self.stderr.write(f"{num_regressed} of {num_cells} cells regressed")
            raise SystemExit(REGRESSED_CODE)
        if comparison.num_undecided:
            self.stderr.write(
                f"{comparison.num_undecided} of {num_cells} cells are undecided: more samples"
            )
            raise SystemExit(ERROR_CODE)

    def _import(self, options: dict[str, Any]) -> None:
        imported = file_import(
            actor=COMMAND,
            path=options["file"],
            model=options["model"],
            build=options["build"],
            target=options["target"],
        )
        for remark in imported.remarks:
            self.stderr.write(remark)
        self.stdout.write(f"{imported.num_runs} results and {imported.num_targets} targets")


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=("md", "json"), default="md", help="default: md")
    parser.add_argument("--target", metavar="NAME", help="of this one alone")
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--scaling", action="store_true", help="speed over length")
    views.add_argument("--swap", action="store_true", help="what loading costs")
    views.add_argument("--concurrency", action="store_true", help="throughput and latency")


def _add_compare(parser: ArgumentParser) -> None:
    parser.add_argument("before", metavar="TARGET[@BUILD]")
    parser.add_argument(
        "after",
        metavar="TARGET[@BUILD]",
        nargs="?",
        help="without it the target's latest build is compared with the one before",
    )
    parser.add_argument("--format", choices=("md", "json"), default="md", help="default: md")
    parser.add_argument("--model", metavar="NAME", help="this one alone")
    parser.add_argument("--scenario", metavar="ID", help="this one alone")
    parser.add_argument("--metric", action="append", choices=sorted(METRICS), help="these alone")
    parser.add_argument(
        "--min-change",
        type=float,
        default=MIN_CHANGE,
        help="smaller changes are none; default: %(default)s",
    )


def _add_import(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="helexa-bench.toml, what scripts/bench --json printed, or a JSON list of points",
    )
    parser.add_argument("--model", default="", help="that scripts/bench measured")
    parser.add_argument("--build", default="", help="that scripts/bench measured")
    parser.add_argument("--target", default="", metavar="NAME", help="to keep results under")


def _add_sweep(parser: ArgumentParser) -> None:
    several: dict[str, Any] = {"action": "append", "default": []}
    seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
    whom = parser.add_argument_group("whom to measure")
    whom.add_argument(
        "--config", type=Path, metavar="FILE", help="a helexa-bench.toml, instead of the database"
    )
    whom.add_argument("--endpoint", metavar="URL", help="this one alone, with --name and --kind")
    whom.add_argument(
        "--kind", choices=BenchTarget.Kind.values, default="openai", help="default: %(default)s"
    )
    whom.add_argument("--name", help="what its results are kept under (default: the endpoint)")
    whom.add_argument("--build", default="", help="where the endpoint reports none")
    whom.add_argument(
        "--target", dest="targets", metavar="NAME", help="of those, this one", **several
    )
    whom.add_argument(
        "--no-fleet", dest="has_fleet", action="store_false", help="leave this fleet's neurons out"
    )
    whom.add_argument("--url", help="of this fleet's gateway (or HELEXA_URL; else the serve here)")
    whom.add_argument("--key", help="sent to the gateway or the --endpoint (or HELEXA_API_KEY)")
    how = parser.add_argument_group("how to measure")
    how.add_argument("--scenario", dest="scenarios", metavar="ID", help="as chat:128", **several)
    how.add_argument("--model", dest="models", metavar="NAME", help="this one alone", **several)
    how.add_argument("--samples", type=int, help="per target, build, model and scenario")
    how.add_argument("--max-tokens", type=int, help="of an answer")
    how.add_argument("--pause", dest="pause_s", help="between samples", **seconds)
    how.add_argument("--timeout", dest="timeout_s", help="of one request", **seconds)
    how.add_argument(
        "--beside-load",
        dest="is_beside_load",
        action="store_true",
        help="also while others use the target",
    )
