"""Files into the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from metering.actor import Actor
from metering.bench import store
from metering.bench.errors import BenchFileError
from metering.bench.files.bench_toml import BenchToml, read_bench_toml
from metering.bench.files.results_json import read_results
from metering.bench.models import BenchRun, BenchTarget

SCRIPTS_BENCH = "scripts/bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    num_runs: int = 0
    num_targets: int = 0
    remarks: tuple[str, ...] = ()


def file_import(
    *, actor: Actor, path: Path, model: str = "", build: str = "", target: str = ""
) -> Imported:
    """``target``: the name under which results are kept, where it is not the file's. Raises
    ``BenchError``."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchFileError(f"{path} cannot be read: {error}") from error
    if path.suffix == ".toml":
        return toml_apply(actor=actor, toml=read_bench_toml(text))
    results = read_results(text, model=model, build=build)
    imported = _keep(actor, path, results.rows, target=target)
    return Imported(num_runs=imported.num_runs, remarks=results.remarks)


def toml_apply(*, actor: Actor, toml: BenchToml) -> Imported:
    """Targets of the same name are changed. Raises ``BenchError``."""
    with transaction.atomic():
        if toml.plan:
            plan = store.plan_find()
            for name, value in toml.plan.items():
                setattr(plan, name, value)
            store.plan_save(actor=actor, plan=plan)
        for columns in toml.targets:
            target = BenchTarget.objects.filter(name=columns["name"]).first() or BenchTarget()
            for name, value in columns.items():
                setattr(target, name, value)
            store.target_save(actor=actor, target=target)
    return Imported(num_targets=len(toml.targets), remarks=toml.remarks)


def _keep(actor: Actor, path: Path, rows: Iterable[Mapping[str, Any]], *, target: str) -> Imported:
    written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    runs = []
    for row in rows:
        columns = {"ts": written_at, "target_kind": "openai", "ok": True, **row}
        if target:
            columns["target_name"] = target
        run = BenchRun(origin=SCRIPTS_BENCH, **columns)
        try:
            run.clean_fields()
        except ValidationError as error:
            raise BenchFileError(f"{path}: {'; '.join(error.messages)}") from error
        runs.append(run)
    num_runs = store.runs_import(actor=actor, runs=runs, source=path.name)
    return Imported(num_runs=num_runs)
