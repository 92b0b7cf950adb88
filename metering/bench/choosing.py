"""Chooses a sweep's targets and settings: the caller's options over the database's rows, or a
file's."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from django.conf import settings

from fleet.models import Neuron
from helexa_site.server_url import server_and_key
from inference.settings.gateway import API_KEY
from metering.bench import store
from metering.bench.bench_toml import read_bench_toml
from metering.bench.errors import BenchValueError
from metering.bench.importing import text_of
from metering.bench.models import BenchTarget, SweepPlan
from metering.bench.sweep import Sweep, SweepResult
from metering.bench.targets import TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepChoice:
    """Empty fields leave the choice to the plan and the targets."""

    targets: Sequence[str] = ()
    models: Sequence[str] = ()
    scenarios: Sequence[str] = ()
    samples: int | None = None
    max_tokens: int | None = None
    pause_s: float | None = None
    timeout_s: float | None = None
    is_beside_load: bool = False
    config: Path | None = None
    """A file instead of the database."""
    endpoint: str | None = None
    """Only this one."""
    kind: str = "openai"
    name: str | None = None
    build: str = ""
    has_fleet: bool = True
    url: str | None = None
    key: str | None = None


def add_sweep_arguments(parser: ArgumentParser) -> None:
    """Their destinations are the fields of ``SweepChoice``."""
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


def choice_of(options: Mapping[str, Any]) -> SweepChoice:
    return SweepChoice(**{field.name: options[field.name] for field in fields(SweepChoice)})


def sweep_run(choice: SweepChoice, report: Callable[[str], object], **hooks: Any) -> SweepResult:
    """Runs a sweep into the database. ``hooks``: fields of ``Sweep``. Raises ``BenchError``."""
    plan = plan_chosen(choice)
    sweep = Sweep(plan=plan, is_beside_load=choice.is_beside_load, report=report, **hooks)
    specs = targets_chosen(choice)
    if not specs:
        raise BenchValueError("target", "there is nothing to measure: no neuron, no target")
    result = sweep.run(specs)
    report(
        f"{result.num_ok} measured, {result.num_failed} failed, "
        f"{result.num_cells_done} had their samples"
    )
    return result


def plan_chosen(choice: SweepChoice) -> SweepPlan:
    """The database's or the file's, with the caller's options. Raises ``BenchError``."""
    plan = store.plan_find()
    columns = dict(read_bench_toml(text_of(choice.config)).plan) if choice.config else {}
    numbers: dict[str, Any] = {
        "samples_per_version": choice.samples,
        "max_tokens": choice.max_tokens,
        "iteration_pause_s": choice.pause_s,
        "request_timeout_s": choice.timeout_s,
    }
    for name, value in numbers.items():
        if value is not None:
            if value < 0 or (value == 0 and name != "iteration_pause_s"):
                raise BenchValueError(name, f"{value} is too little")
            columns[name] = value
    if choice.scenarios:
        columns["scenarios"] = list(choice.scenarios)
    for name, value in columns.items():
        setattr(plan, name, value)
    store.plan_check(plan)
    return plan


def targets_chosen(choice: SweepChoice) -> list[TargetSpec]:
    """Raises ``BenchError``."""
    specs = {spec.row.name: spec for spec in _all_targets(choice)}
    names = choice.targets or list(specs)
    for name in names:
        if name not in specs:
            known = ", ".join(specs) or "there is none"
            raise BenchValueError("target", f"{name!r} is no target: {known}")
    chosen = [specs[name] for name in dict.fromkeys(names)]
    for spec in chosen:
        if choice.models:
            spec.row.only_models = list(choice.models)
        if choice.scenarios:
            spec.row.scenarios = []
    return chosen


def _all_targets(choice: SweepChoice) -> Iterator[TargetSpec]:
    if choice.endpoint:
        target = BenchTarget(
            name=choice.name or choice.endpoint,
            kind=choice.kind,
            endpoint=choice.endpoint,
            build=choice.build,
        )
        store.target_check(target)
        yield TargetSpec(row=target, api_key=choice.key or API_KEY.read(os.environ))
        return
    if choice.config:
        rows = [
            BenchTarget(**columns) for columns in read_bench_toml(text_of(choice.config)).targets
        ]
    else:
        rows = list(BenchTarget.objects.all())
    if choice.has_fleet:
        # Through the database's views; their models answer at ``url``.
        url, key = server_and_key(choice.url, choice.key, settings.CONFIG.data_dir)
        for neuron in Neuron.objects.exclude(status="away").order_by("name"):
            row = BenchTarget(name=neuron.name, kind="neuron", endpoint=url)
            yield TargetSpec(row=row, api_key=key, is_local=True)
    for row in rows:
        if row.enabled:
            store.target_check(row)
            yield TargetSpec(row=row, api_key=os.environ.get(row.api_key_env))
