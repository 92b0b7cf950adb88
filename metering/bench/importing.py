"""Imports files: targets and the plan from ``helexa-bench.toml``, results as JSON.

Results are the output of this repository's ``scripts/bench --json``, or a list of points: objects
with the columns of a run, such as a baseline or the API's answer. ``scripts/bench`` names its rows
in words: ``decode, 8 at once`` is ``concurrency:8`` here, ``prefill, 512 tokens`` is
``prefill:512``, a TTFT with its length ``chat:<n>``, cold or warm.

The original's ``chat:<n>`` sent the same prompt each time, which a prefix cache served: each in a
``helexa-bench.toml`` becomes both ``chat:<n>`` and ``chat:<n>:warm`` here. Scenarios of earlier
releases are left out with a remark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import models, transaction
from msgspec import UNSET, Meta, Struct, UnsetType, field

from metering.actor import Actor
from metering.bench import store
from metering.bench.errors import BenchError, BenchValueError
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.probing import EXTERNAL, moment_of
from metering.bench.results import TEXT_COLUMNS
from metering.bench.scenarios import parse_scenarios
from metering.services.audit import audit_entry_create

ROWS = (
    (re.compile(r"decode, (\d+)\b"), "concurrency:{}", "decode_tps"),
    (re.compile(r"prefill, (\d+)\b"), "prefill:{}", "prefill_tps"),
    (re.compile(r"TTFT, (\d+) tokens, cold"), "chat:{}", "ttft_s"),
    (re.compile(r"TTFT, (\d+) tokens, prefix-warm"), "chat:{}:warm", "ttft_s"),
)
COLUMN_OF_TEXT = {text: column for column, text in TEXT_COLUMNS.items()}
COLUMNS = {column.name: column for column in BenchRun._meta.concrete_fields}
TYPES: tuple[tuple[type, tuple[type, ...]], ...] = (
    (models.DateTimeField, (datetime,)),
    (models.BooleanField, (bool,)),
    (models.FloatField, (int, float)),
    (models.IntegerField, (int,)),
    (models.Field, (str,)),
)
"""What a column takes, by the first field that fits: Django would convert some others."""
IDENTITY = (
    *("origin", "ts", "target_name", "build", "model_id", "scenario_id", "ok"),
    *("ttft_s", "decode_tps", "prefill_tps", "total_s", "swap_load_ms"),
)
"""Columns by which an imported row is known."""
Row = dict[str, Any]
LEFT_OUT = {
    "db_path": "results are in this server's database",
    "enabled": "the API is this server's",
    "listen": "the API is this server's",
    "image_sizes": "no images are measured",
    "capability_probes": "answers are not scored",
}
"""Fields of the original that have no meaning here."""
GONE_KINDS = frozenset({"context", "swap", "tools", "structured", "capability", "embedding"})
Seconds = Annotated[float, Meta(ge=0)] | UnsetType
Count = Annotated[int, Meta(ge=0)] | UnsetType
Text = str | UnsetType
Texts = list[str] | UnsetType


class _Bench(Struct, forbid_unknown_fields=True, kw_only=True):
    """Columns of ``SweepPlan``, like those of ``_Scenarios`` that are no lists."""

    sweep_interval_s: Seconds = field(name="sweep_interval_secs", default=UNSET)
    samples_per_version: Count = UNSET
    iteration_pause_s: Seconds = field(name="iteration_pause_secs", default=UNSET)
    request_timeout_s: Seconds = field(name="request_timeout_secs", default=UNSET)
    db_path: Any = UNSET


class _Scenarios(Struct, forbid_unknown_fields=True, kw_only=True):
    prompt_sizes: list[int] = []
    concurrency_levels: list[int] = []
    ids: list[str] = []
    max_tokens: Count = UNSET
    concurrency_prompt_tokens: Count = UNSET
    image_sizes: Any = UNSET
    capability_probes: Any = UNSET


class _Api(Struct, forbid_unknown_fields=True):
    enabled: Any = UNSET
    listen: Any = UNSET


class _Target(Struct, forbid_unknown_fields=True, kw_only=True):
    """Columns of ``BenchTarget``. The original has the first four."""

    name: str
    kind: str
    endpoint: str
    label: Text = UNSET
    only_models: Texts = field(name="models", default=UNSET)
    scenarios: Texts = UNSET
    api_key_env: Text = UNSET
    build: Text = UNSET
    hostname: Text = UNSET
    gpus: Texts = UNSET


class _File(Struct, forbid_unknown_fields=True):
    bench: _Bench = field(default_factory=_Bench)
    scenarios: _Scenarios = field(default_factory=_Scenarios)
    api: _Api = field(default_factory=_Api)
    targets: list[_Target] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchToml:
    plan: Mapping[str, Any]
    """Columns of ``SweepPlan`` that the file names."""
    targets: Sequence[Mapping[str, Any]]
    """Columns of ``BenchTarget``."""
    remarks: Sequence[str]
    """The fields that are left out, each with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    num_runs: int = 0
    num_targets: int = 0
    remarks: Sequence[str] = ()


def file_import(
    *, actor: Actor, path: Path, model: str = "", build: str = "", target: str = ""
) -> Imported:
    """``target``: the name for the results, if not the file's. ``model`` and ``build``: a file of
    ``scripts/bench`` lacks them. Raises ``BenchError``."""
    text = text_of(path)
    if path.suffix == ".toml":
        return _toml_apply(actor, read_bench_toml(text))
    remarks: list[str] = []
    rows = _rows(text, model, build, remarks)
    written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    common = {"ts": written_at, "target_kind": "openai", "ok": True, "origin": "scripts/bench"}
    name = {"target_name": target} if target else {}
    runs = [BenchRun(**{**common, **row, **name}) for row in rows]
    for run in runs:
        try:
            run.clean_fields()
        except ValidationError as error:
            raise BenchError(f"{path}: {'; '.join(error.messages)}") from error
    return Imported(num_runs=_runs_create(actor, runs, path.name), remarks=remarks)


def text_of(path: Path) -> str:
    """Raises ``BenchError``."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error


def _toml_apply(actor: Actor, toml: BenchToml) -> Imported:
    """Changes targets of the same name. Raises ``BenchError``."""
    known = BenchTarget.objects.in_bulk(field_name="name")
    rows: list[tuple[BenchTarget | SweepPlan, Mapping[str, Any]]] = (
        [(store.plan_find(), toml.plan)] if toml.plan else []
    )
    rows += [(known.get(one["name"]) or BenchTarget(), one) for one in toml.targets]
    with transaction.atomic():
        for row, columns in rows:
            for name, value in columns.items():
                setattr(row, name, value)
            store.row_save(actor=actor, row=row)
    return Imported(num_targets=len(toml.targets), remarks=toml.remarks)


def _runs_create(actor: Actor, runs: Sequence[BenchRun], source: str) -> int:
    """Returns how many were new. A row with the moment, cell and numbers of an existing one is
    skipped."""
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
    """A row for each number of ``scripts/bench``."""
    measurements = body.get("measurements")
    if measurements is None:
        measurements = {
            name: {"readings": readings} for name, readings in (body.get("readings") or {}).items()
        }
    rows = []
    for name, measurement in measurements.items():
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
        raise BenchError("a point is a JSON object")
    for name in ("target_name", "model_id", "scenario_id"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise BenchError(f"a point has its {name}")
    # The database gives these itself.
    row = {
        name: value for name, value in map(_parsed, body.items()) if name not in ("id", "origin")
    }
    row = {name: value for name, value in row.items() if value is not None}
    for name, value in row.items():
        if not _is_of_column(name, value):
            raise BenchError(f"a point has no {name} that is {value!r}")
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
    column = COLUMNS.get(name)
    if isinstance(column, models.JSONField):
        return isinstance(value, column.default)
    types = next((types for kind, types in TYPES if isinstance(column, kind)), ())
    return type(value) in types


def read_bench_toml(text: str) -> BenchToml:
    """Raises ``BenchError``."""
    try:
        file = msgspec.toml.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise BenchError(f"no helexa-bench.toml: {error}") from error
    remarks: list[str] = []
    plan: dict[str, Any] = {}
    for table in ("bench", "scenarios", "api"):
        for name, value in _given(getattr(file, table)).items():
            if name in LEFT_OUT:
                remarks.append(f"{table}.{name} is left out: {LEFT_OUT[name]}")
            elif not isinstance(value, list):
                plan[name] = value
    ids = [f"chat:{size}{end}" for size in file.scenarios.prompt_sizes for end in ("", ":warm")]
    ids += [f"concurrency:{level}" for level in file.scenarios.concurrency_levels]
    if ids := ids + _measured(file.scenarios.ids, remarks):
        try:
            plan["scenarios"] = [scenario.id for scenario in parse_scenarios(ids)]
        except BenchValueError as error:
            raise BenchError(str(error)) from error
    targets = [_target_columns(target, remarks) for target in file.targets]
    return BenchToml(plan=plan, targets=targets, remarks=remarks)


def _target_columns(target: _Target, remarks: list[str]) -> dict[str, Any]:
    columns = _given(target)
    if columns.get("scenarios"):
        columns["scenarios"] = _measured(columns["scenarios"], remarks)
        if not columns["scenarios"]:
            columns["enabled"] = False
            remarks.append(f"{target.name} is disabled: none of its scenarios is measured")
    return columns


def _measured(ids: list[str], remarks: list[str]) -> list[str]:
    gone = [text for text in ids if text.partition(":")[0] in GONE_KINDS]
    remarks += [f"{text} is left out: it is no longer measured" for text in gone]
    return [text for text in ids if text not in gone]


def _given(table: Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(table)
    return {name: value for name, value in values.items() if value is not UNSET}
