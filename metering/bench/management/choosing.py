"""Whom a sweep measures and how: the command's options over the database's rows, and the sweep."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings

from fleet.models import Neuron
from helexa_site.server_url import server_and_key
from inference.settings.gateway import API_KEY
from metering.bench import store
from metering.bench.bench_toml import read_bench_toml
from metering.bench.errors import BenchFileError, BenchValueError
from metering.bench.models import BenchTarget
from metering.bench.scenarios import KINDS, SweepSettings, TargetSpec, parse_scenarios
from metering.bench.sweep import Sweep, SweepResult
from metering.bench.targets import open_target


def add_sweep_arguments(parser: ArgumentParser) -> None:
    whom = parser.add_argument_group("whom to measure")
    whom.add_argument(
        "--config", type=Path, metavar="FILE", help="a helexa-bench.toml, instead of the database"
    )
    whom.add_argument("--endpoint", metavar="URL", help="this one alone, with --name and --kind")
    whom.add_argument("--kind", choices=KINDS, default="openai", help="default: %(default)s")
    whom.add_argument("--name", help="what its results are kept under (default: the endpoint)")
    whom.add_argument("--build", default="", help="where the endpoint reports none")
    whom.add_argument("--target", action="append", metavar="NAME", help="of those, this one")
    whom.add_argument("--no-fleet", action="store_true", help="leave this fleet's neurons out")
    whom.add_argument("--url", help="of this fleet's gateway (or HELEXA_URL; else the serve here)")
    whom.add_argument("--key", help="sent to the gateway or the --endpoint (or HELEXA_API_KEY)")
    how = parser.add_argument_group("how to measure")
    how.add_argument("--scenario", action="append", metavar="ID", help="as chat:128")
    how.add_argument("--model", action="append", metavar="NAME", help="this one alone")
    how.add_argument("--samples", type=int, help="per target, build, model and scenario")
    how.add_argument("--max-tokens", type=int, help="of an answer")
    how.add_argument("--pause", type=float, metavar="SECONDS", help="between samples")
    how.add_argument("--timeout", type=float, metavar="SECONDS", help="of one request")
    how.add_argument("--beside-load", action="store_true", help="also while others use the target")


def sweep_of(settings: SweepSettings, report: Callable[[str], object]) -> Sweep:
    """A sweep into the database."""
    return Sweep(
        settings=settings,
        store=store.RunStore(),
        open_target=lambda spec: open_target(spec, timeout_s=settings.request_timeout_s),
        report=report,
    )


def sweep_run(
    options: Mapping[str, Any], sweep: Sweep, report: Callable[[str], object]
) -> SweepResult:
    """Raises ``BenchError``."""
    specs = targets_chosen(options)
    if not specs:
        raise BenchValueError("target", "there is nothing to measure: no neuron, no target")
    result = sweep.run(specs)
    report(
        f"{result.num_ok} measured, {result.num_failed} failed, "
        f"{result.num_cells_done} had their samples"
    )
    return result


def settings_chosen(options: Mapping[str, Any]) -> SweepSettings:
    """Raises ``BenchError``."""
    plan = store.plan_find()
    if options["config"]:
        for name, value in _file(options["config"]).plan.items():
            setattr(plan, name, value)
    settings = store.settings_of(plan)
    numbers = {
        "samples_per_build": options["samples"],
        "max_tokens": options["max_tokens"],
        "iteration_pause_s": options["pause"],
        "request_timeout_s": options["timeout"],
    }
    for name, value in numbers.items():
        if value is not None:
            if value < 0 or (value == 0 and name != "iteration_pause_s"):
                raise BenchValueError(name, f"{value} is too little")
            settings = replace(settings, **{name: value})
    if options["scenario"]:
        settings = replace(settings, scenarios=tuple(parse_scenarios(options["scenario"])))
    return replace(settings, is_beside_load=options["beside_load"])


def targets_chosen(options: Mapping[str, Any]) -> list[TargetSpec]:
    """Raises ``BenchError``."""
    specs = {spec.name: spec for spec in _all_targets(options)}
    names = options["target"] or list(specs)
    for name in names:
        if name not in specs:
            known = ", ".join(specs) or "there is none"
            raise BenchValueError("target", f"{name!r} is no target: {known}")
    chosen = [specs[name] for name in dict.fromkeys(names)]
    if options["model"]:
        chosen = [replace(spec, only_models=tuple(options["model"])) for spec in chosen]
    if options["scenario"]:
        chosen = [replace(spec, scenarios=()) for spec in chosen]
    return chosen


def _all_targets(options: Mapping[str, Any]) -> Iterator[TargetSpec]:
    if endpoint := options["endpoint"]:
        target = BenchTarget(
            name=options["name"] or endpoint,
            kind=options["kind"],
            endpoint=endpoint,
            build=options["build"],
        )
        key = options["key"] or API_KEY.read(os.environ)
        yield replace(store.spec_of(target, os.environ), api_key=key)
        return
    if options["config"]:
        rows = [BenchTarget(**columns) for columns in _file(options["config"]).targets]
    else:
        rows = list(BenchTarget.objects.filter(enabled=True))
    if not options["no_fleet"]:
        data_dir = settings.CONFIG.data_dir
        yield from _neurons(*server_and_key(options["url"], options["key"], data_dir))
    for row in rows:
        yield store.spec_of(row, os.environ)


def _neurons(url: str, key: str | None) -> Iterator[TargetSpec]:
    """This fleet's, asked through the database's views; what they answer comes from ``url``."""
    for neuron in Neuron.objects.exclude(status="away").order_by("name"):
        yield TargetSpec(name=neuron.name, kind="neuron", endpoint=url, api_key=key, is_local=True)


def _file(path: Path) -> Any:
    try:
        return read_bench_toml(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BenchFileError(f"{path} cannot be read: {error}") from error
