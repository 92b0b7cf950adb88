"""Imports files: targets and the plan from ``helexa-bench.toml``, results as JSON.

Results are the output of this repository's ``scripts/bench --json``, or a list of points: objects
with the columns of a run, such as a baseline or the API's answer. ``scripts/bench`` names its rows
in words: ``decode, 8 at once`` is ``concurrency:8`` here, ``prefill, 512 tokens`` is
``prefill:512``, a TTFT with its length ``chat:<n>``, cold or warm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import models, transaction

from metering.actor import Actor
from metering.bench import store
from metering.bench.bench_toml import BenchToml, read_bench_toml
from metering.bench.errors import BenchFileError
from metering.bench.models import BenchRun, BenchTarget
from metering.bench.probing import EXTERNAL, moment_of
from metering.bench.results import TEXT_COLUMNS

SCRIPTS_BENCH = "scripts/bench"
ROWS = (
    (re.compile(r"decode, (\d+)\b"), "concurrency:{}", "decode_tps"),
    (re.compile(r"prefill, (\d+)\b"), "prefill:{}", "prefill_tps"),
    (re.compile(r"TTFT, (\d+) tokens, cold"), "chat:{}", "ttft_s"),
    (re.compile(r"TTFT, (\d+) tokens, prefix-warm"), "chat:{}:warm", "ttft_s"),
)
COLUMN_OF_TEXT = {text: column for column, text in TEXT_COLUMNS.items()}
OF_THE_DATABASE = frozenset({"id", "origin"})
"""Fields of a run in the API that an import creates itself."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    num_runs: int = 0
    num_targets: int = 0
    remarks: tuple[str, ...] = ()


def file_import(
    *, actor: Actor, path: Path, model: str = "", build: str = "", target: str = ""
) -> Imported:
    """``target``: the name for the results, if not the file's. ``model`` and ``build``: a file of
    ``scripts/bench`` lacks them. Raises ``BenchError``."""
    text = text_of(path)
    if path.suffix == ".toml":
        return toml_apply(actor=actor, toml=read_bench_toml(text))
    remarks: list[str] = []
    rows = _rows(text, model, build, remarks)
    written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    defaults = {"ts": written_at, "target_kind": "openai", "ok": True, "origin": SCRIPTS_BENCH}
    name = {"target_name": target} if target else {}
    runs = [BenchRun(**{**defaults, **row, **name}) for row in rows]
    for run in runs:
        try:
            run.clean_fields()
        except ValidationError as error:
            raise BenchFileError(f"{path}: {'; '.join(error.messages)}") from error
    num_runs = store.runs_import(actor=actor, runs=runs, source=path.name)
    return Imported(num_runs=num_runs, remarks=tuple(remarks))


def text_of(path: Path) -> str:
    """Raises ``BenchFileError``."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchFileError(f"{path} cannot be read: {error}") from error


def toml_apply(*, actor: Actor, toml: BenchToml) -> Imported:
    """Changes targets of the same name. Raises ``BenchError``."""
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


def _rows(text: str, model: str, build: str, remarks: list[str]) -> list[Row]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BenchFileError(f"no JSON: {error}") from error
    if isinstance(body, list):
        return [_point(one) for one in body]
    if not isinstance(body, dict) or not isinstance(body.get("subjects"), dict):
        raise BenchFileError("neither a list of points nor what scripts/bench --json prints")
    if not model:
        raise BenchFileError("scripts/bench does not name the model it measured: name it")
    common = {"build": build or EXTERNAL, "model_id": model}
    return [{**common, **row} for row in _readings(body, remarks)]


def _readings(body: Mapping[str, Any], remarks: list[str]) -> list[dict[str, Any]]:
    """A row for each number of ``scripts/bench``."""
    measurements = body.get("measurements")
    if measurements is None:
        measurements = {
            name: {"readings": readings} for name, readings in (body.get("readings") or {}).items()
        }
    rows = []
    for name, measurement in measurements.items():
        known = _known_row(name)
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


def _known_row(name: str) -> tuple[str, str] | None:
    for pattern, scenario, column in ROWS:
        if match := pattern.match(name):
            return scenario.format(match[1]), column
    return None


def _point(body: Any) -> Row:
    if not isinstance(body, dict):
        raise BenchFileError("a point is a JSON object")
    for name in ("target_name", "model_id", "scenario_id"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise BenchFileError(f"a point has its {name}")
    row: dict[str, Any] = {}
    for name, value in map(_parsed, body.items()):
        if name not in OF_THE_DATABASE and value is not None:
            if not _is_of_column(name, value):
                raise BenchFileError(f"a point has no {name} that is {value!r}")
            row[name] = value
    row["build"] = row.get("build") or row.get("git_sha") or EXTERNAL
    return row


def _parsed(item: tuple[str, Any]) -> tuple[str, Any]:
    """The column and its value: lists and dates are text in the API."""
    name, value = item
    if name in ("ts", "build_timestamp"):
        return name, moment_of(value) or value
    if name not in COLUMN_OF_TEXT or not isinstance(value, str):
        return name, value
    try:
        return COLUMN_OF_TEXT[name], json.loads(value)
    except ValueError:
        return name, value


def _is_of_column(name: str, value: Any) -> bool:
    """Whether a run has the column, of the value's type: Django would convert some others."""
    try:
        column = BenchRun._meta.get_field(name)
    except FieldDoesNotExist:
        return False
    match column:
        case models.JSONField():
            return isinstance(value, column.default)
        case models.DateTimeField():
            return isinstance(value, datetime)
        case models.BooleanField():
            return isinstance(value, bool)
        case models.FloatField():
            return type(value) in (int, float)
        case models.IntegerField():
            return type(value) is int
    return isinstance(value, str)
