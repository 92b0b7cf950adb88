"""Imports files: targets and the plan from ``helexa-bench.toml``, and results as JSON, either the
output of ``scripts/bench --json`` or a list of points: objects with the columns of a run.

The original's ``chat:<n>`` sent the same prompt each time, which a prefix cache served: it becomes
both ``chat:<n>`` and ``chat:<n>:warm`` here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from metering.audit import Actor, audit_entry_create
from metering.bench import services
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.results import TEXT_COLUMNS
from metering.bench.targets import EXTERNAL, moment_of
from metering.errors import BenchError

ROWS = (
    (re.compile(r"decode, (\d+)\b"), "concurrency:{}", "decode_tps"),
    (re.compile(r"prefill, (\d+)\b"), "prefill:{}", "prefill_tps"),
    (re.compile(r"TTFT, (\d+) tokens, cold"), "chat:{}", "ttft_s"),
    (re.compile(r"TTFT, (\d+) tokens, prefix-warm"), "chat:{}:warm", "ttft_s"),
)
COLUMN_OF_TEXT = {text: column for column, text in TEXT_COLUMNS.items()}
IDENTITY = (
    *("origin", "ts", "target_name", "build", "model_id", "scenario_id", "ok"),
    *("ttft_s", "decode_tps", "prefill_tps", "total_s", "swap_load_ms"),
)
Row = dict[str, Any]
NAME = "helexa-bench.toml"
LEFT_OUT = {
    "bench.db_path": "results are in this server's database",
    "api.enabled": "the API is this server's",
    "api.listen": "the API is this server's",
    "scenarios.image_sizes": "no images are measured",
    "scenarios.capability_probes": "answers are not scored",
}
PLAN_COLUMNS = {
    "bench.sweep_interval_secs": "sweep_interval_s",
    "bench.samples_per_version": "samples_per_version",
    "bench.iteration_pause_secs": "iteration_pause_s",
    "bench.request_timeout_secs": "request_timeout_s",
    "scenarios.max_tokens": "max_tokens",
    "scenarios.concurrency_prompt_tokens": "concurrency_prompt_tokens",
}
SCENARIO_LISTS = {
    "scenarios.prompt_sizes": ("chat:{}", "chat:{}:warm"),
    "scenarios.concurrency_levels": ("concurrency:{}",),
    "scenarios.ids": ("{}",),
}
GONE_KINDS = frozenset({"context", "swap", "tools", "structured", "capability", "embedding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchToml:
    plan: Row
    targets: Sequence[Row]
    remarks: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    num_runs: int = 0
    num_targets: int = 0
    remarks: Sequence[str] = ()


def file_import(
    *, actor: Actor, path: Path, model: str = "", build: str = "", target: str = ""
) -> Imported:
    """``target``: a name for the results instead of the file's. ``model`` and ``build``: a file of
    ``scripts/bench`` lacks them. Raises ``BenchError``."""
    text = text_of(path)
    if path.suffix == ".toml":
        return _toml_apply(actor, read_bench_toml(text))
    remarks: list[str] = []
    rows = _rows(text, model, build, remarks)
    written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    common = {"ts": written_at, "target_kind": "openai", "ok": True, "origin": "scripts/bench"}
    name = {"target_name": target} if target else {}
    runs = [services.row_fill(BenchRun(), {**common, **row, **name}, "a point") for row in rows]
    return Imported(num_runs=_runs_create(actor, runs, path.name), remarks=remarks)


def text_of(path: Path) -> str:
    """Raises ``BenchError``."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error


def _toml_apply(actor: Actor, toml: BenchToml) -> Imported:
    known = BenchTarget.objects.in_bulk(field_name="name")
    rows: list[tuple[BenchTarget | SweepPlan, Mapping[str, Any]]] = (
        [(services.plan_find(), toml.plan)] if toml.plan else []
    )
    rows += [(known.setdefault(one["name"], BenchTarget()), one) for one in toml.targets]
    with transaction.atomic():
        for row, columns in rows:
            services.row_save(actor=actor, row=services.row_fill(row, columns, NAME))
    return Imported(num_targets=len(toml.targets), remarks=toml.remarks)


def _runs_create(actor: Actor, runs: Sequence[BenchRun], source: str) -> int:
    with transaction.atomic():
        stored = BenchRun.objects.filter(
            origin__in={run.origin for run in runs},
            target_name__in={run.target_name for run in runs},
        )
        known = set(stored.values_list(*IDENTITY))
        fresh = [run for run in runs if tuple(getattr(run, name) for name in IDENTITY) not in known]
        BenchRun.objects.bulk_create(fresh, batch_size=200)
        audit_entry_create(
            actor=actor,
            action="bench_run.import",
            object_id=source,
            detail={"added": len(fresh), "known": len(runs) - len(fresh)},
        )
    return len(fresh)


def _rows(text: str, model: str, build: str, remarks: list[str]) -> list[Row]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BenchError(f"no JSON: {error}") from error
    if isinstance(body, list):
        return [_point(one) for one in body]
    if not isinstance(body, dict) or not isinstance(body.get("subjects"), dict):
        raise BenchError("neither a list of points nor what scripts/bench --json prints")
    if not model:
        raise BenchError("scripts/bench does not name the model it measured: name it")
    common = {"build": build or EXTERNAL, "model_id": model}
    return [{**common, **row} for row in _readings(body, remarks)]


def _readings(body: Mapping[str, Any], remarks: list[str]) -> list[Row]:
    rows = []
    for name, measurement in (body.get("measurements") or {}).items():
        matches = ((pattern.match(name), row, column) for pattern, row, column in ROWS)
        known = next(((row.format(one[1]), column) for one, row, column in matches if one), None)
        if known is None:
            remarks.append(f"{name!r} is left out: there is no such scenario")
            continue
        scenario, column = known
        for subject, readings in (measurement.get("readings") or {}).items():
            settings = {"machine": body.get("machine"), "subject": body["subjects"].get(subject)}
            rows += [
                {
                    "target_name": subject,
                    "scenario_id": scenario,
                    column: float(reading),
                    "settings": {**settings, "round": number},
                }
                for number, reading in enumerate(readings)
                if type(reading) in (int, float)
            ]
    return rows


def _point(body: Any) -> Row:
    if not isinstance(body, dict):
        raise BenchError("a point is an object")
    # The database gives these itself.
    row = {
        name: value for name, value in map(_parsed, body.items()) if name not in ("id", "origin")
    }
    row = {name: value for name, value in row.items() if value is not None}
    row["build"] = row.get("build") or row.get("git_sha") or EXTERNAL
    return row


def _parsed(item: tuple[str, Any]) -> tuple[str, Any]:
    """Lists and dates are text in the API."""
    name, value = item
    if name in ("ts", "build_timestamp"):
        return name, moment_of(value) or value
    if name not in COLUMN_OF_TEXT or not isinstance(value, str):
        return name, value
    try:
        return COLUMN_OF_TEXT[name], json.loads(value)
    except ValueError:
        return name, value


def read_bench_toml(text: str) -> BenchToml:
    """Raises ``BenchError``."""
    try:
        file = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"no {NAME}: {error}") from error
    remarks: list[str] = []
    plan: Row = {}
    ids: list[str] = []
    found = file.pop("targets", [])
    for name, value in _settings(file):
        if name in LEFT_OUT:
            remarks.append(f"{name} is left out: {LEFT_OUT[name]}")
        elif name in SCENARIO_LISTS and isinstance(value, list):
            ids += [pattern.format(one) for one in value for pattern in SCENARIO_LISTS[name]]
        elif name in PLAN_COLUMNS:
            plan[PLAN_COLUMNS[name]] = value
        else:
            raise BenchError(f"{NAME} has no {name} that is {value!r}")
    if ids := _measured(ids, remarks):
        plan["scenarios"] = list(dict.fromkeys(ids))
    services.row_fill(SweepPlan(), plan, NAME)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BenchError(f"{NAME} has no list of targets")
    targets = [_target_columns(target, remarks) for target in found]
    return BenchToml(plan=plan, targets=targets, remarks=remarks)


def _settings(file: Row) -> Iterator[tuple[str, Any]]:
    for table, body in file.items():
        if table not in ("bench", "scenarios", "api") or not isinstance(body, dict):
            raise BenchError(f"{NAME} has no table {table}")
        for name, value in body.items():
            yield f"{table}.{name}", value


def _target_columns(target: Row, remarks: list[str]) -> Row:
    columns = {"only_models" if name == "models" else name: one for name, one in target.items()}
    if isinstance(ids := columns.get("scenarios"), list) and ids:
        columns["scenarios"] = _measured(ids, remarks)
        if not columns["scenarios"]:
            columns["enabled"] = False
            remarks.append(f"{target.get('name')} is disabled: none of its scenarios is measured")
    services.row_fill(BenchTarget(), columns, "a target")
    return columns


def _measured(ids: list[str], remarks: list[str]) -> list[str]:
    gone = [text for text in ids if str(text).partition(":")[0] in GONE_KINDS]
    remarks += [f"{text} is left out: it is no longer measured" for text in gone]
    return [text for text in ids if text not in gone]
