"""Chooses a sweep's targets and settings: the caller's options over the database's rows, or a
file's."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from fleet.models import Neuron
from helexa_site.management.base import server_and_key
from inference.settings.gateway import API_KEY
from metering.bench import store
from metering.bench.errors import BenchValueError
from metering.bench.importing import read_bench_toml, text_of
from metering.bench.models import BenchTarget, SweepPlan
from metering.bench.sweep import Sweep
from metering.bench.targets import NeuronTarget, Target

Options = Mapping[str, Any]
"""The command's, by the destinations of its arguments. Those that are missing or empty leave the
choice to the plan and the targets. ``config`` is a file instead of the database; with an
``endpoint`` only this one is measured."""


def add_sweep_arguments(parser: ArgumentParser) -> None:
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


def sweep_of(options: Options, report: Callable[[str], object]) -> Sweep:
    """Raises ``BenchError``."""
    config, models, scenarios = (options.get(name) for name in ("config", "models", "scenarios"))
    toml = read_bench_toml(text_of(config)) if config else None
    plan = _plan(options, toml.plan if toml else {})
    rows = [BenchTarget(**columns) for columns in toml.targets] if toml else None
    found = _targets(options, rows, plan.request_timeout_s)
    targets = {target.row.name: target for target in found}
    names = options.get("targets") or targets
    for name in names:
        if name not in targets:
            known = ", ".join(targets) or "there is none"
            raise BenchValueError("target", f"{name!r} is no target: {known}")
    chosen = [targets[name] for name in dict.fromkeys(names)]
    if not chosen:
        raise BenchValueError("target", "there is nothing to measure: no neuron, no target")
    for target in chosen:
        if models:
            target.row.only_models = list(models)
        if scenarios:
            target.row.scenarios = []
    is_beside_load = options.get("is_beside_load", False)
    return Sweep(plan=plan, targets=chosen, is_beside_load=is_beside_load, report=report)


def _plan(options: Options, columns: Mapping[str, Any]) -> SweepPlan:
    """The database's, with a file's columns and the caller's options. Raises ``BenchError``."""
    numbers = {
        "samples_per_version": options.get("samples"),
        "max_tokens": options.get("max_tokens"),
        "iteration_pause_s": options.get("pause_s"),
        "request_timeout_s": options.get("timeout_s"),
        "scenarios": options.get("scenarios") or None,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    return store.row_fill(store.plan_find(), {**columns, **given}, "the sweep")


def _targets(
    options: Options, rows: Iterable[BenchTarget] | None, timeout_s: float
) -> Iterator[Target]:
    """``rows``: a file's, instead of the database's. Raises ``BenchError``."""
    if endpoint := options.get("endpoint"):
        row = BenchTarget(
            name=options["name"] or endpoint,
            kind=options["kind"],
            endpoint=endpoint,
            build=options["build"],
        )
        yield _target(row, options["key"] or API_KEY.read(os.environ), timeout_s)
        return
    if options.get("has_fleet", True):
        # Through the database's views; their models answer at ``url``.
        url, key = server_and_key(options.get("url"), options.get("key"), settings.CONFIG.data_dir)
        for neuron in Neuron.objects.exclude(status="away").order_by("name"):
            row = BenchTarget(name=neuron.name, kind="neuron", endpoint=url)
            yield NeuronTarget(row, key, timeout_s=timeout_s, is_local=True)
    for row in BenchTarget.objects.all() if rows is None else rows:
        if row.enabled:
            yield _target(row, os.environ.get(row.api_key_env), timeout_s)


def _target(row: BenchTarget, api_key: str | None, timeout_s: float) -> Target:
    store.row_check(row)
    kind = NeuronTarget if row.kind == "neuron" else Target
    return kind(row, api_key, timeout_s=timeout_s)
