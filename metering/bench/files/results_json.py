"""Results as JSON: ``scripts/bench --json`` of this repository, lists of baseline points, and runs
as the API has them. Pure: rows come out as the columns of a run.

``scripts/bench`` names its rows in words: ``decode, 8 at once`` is ``concurrency:8`` here,
``prefill, 512 tokens`` is ``prefill:512``, a TTFT with its length ``chat:<n>``, cold or warm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metering.bench.errors import BenchFileError
from metering.bench.sweeps.probing import EXTERNAL, moment_of

ROWS = (
    (re.compile(r"decode, (\d+)\b"), "concurrency:{}", "decode_tps"),
    (re.compile(r"prefill, (\d+)\b"), "prefill:{}", "prefill_tps"),
    (re.compile(r"TTFT, (\d+) tokens, cold"), "chat:{}", "ttft_s"),
    (re.compile(r"TTFT, (\d+) tokens, prefix-warm"), "chat:{}:warm", "ttft_s"),
)
POINT_TEXTS = frozenset(
    {
        "target_name",
        "target_kind",
        "endpoint",
        "hostname",
        "driver_version",
        "cuda_version",
        "build",
        "git_sha",
        "git_sha_long",
        "package_version",
        "model_id",
        "harness",
        "scenario_id",
        "bench_version",
        "bench_sha",
        "timing",
        "artifact",
        "scorer",
        "error",
    }
)
POINT_NUMBERS = frozenset(
    {
        "ttft_s",
        "decode_tps",
        "prefill_tps",
        "total_s",
        "prefill_ms",
        "decode_ms",
        "ttft_p95_s",
        "queue_wait_ms",
        "swap_unload_ms",
        "swap_load_ms",
        "quality_score",
    }
)
POINT_COUNTS = frozenset(
    {
        "prompt_size_approx",
        "prompt_tokens_actual",
        "cached_tokens",
        "completion_tokens",
        "max_tokens",
        "prefill_tokens",
        "vram_used_mb",
        "gpu_util_pct",
        "gpu_temp_c",
        "concurrency",
        "rejected",
    }
)
POINT_FLAGS = frozenset({"ok", "git_dirty"})
POINT_OBJECTS = frozenset({"settings", "detail"})
POINT_LISTS = frozenset({"features", "capabilities", "devices"})
JSON_TEXTS = {f"{name}_json": name for name in ("gpus", *sorted(POINT_LISTS))}
"""Lists that the API has as text."""
OF_THE_DATABASE = frozenset({"id", "origin"})
"""Fields that the API shows of a run and that an import creates itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    rows: tuple[Mapping[str, Any], ...]
    remarks: tuple[str, ...] = ()


def read_results(text: str, *, model: str, build: str) -> ResultFile:
    """``model`` and ``build``: a file of ``scripts/bench`` does not contain them. Raises
    ``BenchFileError``."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BenchFileError(f"no JSON: {error}") from error
    if isinstance(body, list):
        return ResultFile(rows=tuple(_point(one) for one in body))
    if not isinstance(body, dict) or not isinstance(body.get("subjects"), dict):
        raise BenchFileError("neither a list of points nor what scripts/bench --json prints")
    if not model:
        raise BenchFileError("scripts/bench does not name the model it measured: name it")
    return _scripts_bench(body, model=model, build=build or EXTERNAL)


def _scripts_bench(body: Mapping[str, Any], *, model: str, build: str) -> ResultFile:
    measurements = body.get("measurements")
    if measurements is None:
        measurements = {
            name: {"readings": readings} for name, readings in (body.get("readings") or {}).items()
        }
    rows: list[Mapping[str, Any]] = []
    remarks = []
    for name, measurement in measurements.items():
        known = _known_row(name)
        if known is None:
            remarks.append(f"{name!r} is left out: there is no such scenario")
            continue
        scenario, column = known
        for subject, readings in (measurement.get("readings") or {}).items():
            rows += _readings(readings, scenario, column, subject, body, model, build)
    return ResultFile(rows=tuple(rows), remarks=tuple(remarks))


def _readings(
    readings: Sequence[Any],
    scenario: str,
    column: str,
    subject: str,
    body: Mapping[str, Any],
    model: str,
    build: str,
) -> Iterator[Mapping[str, Any]]:
    for number, reading in enumerate(readings):
        if type(reading) in (int, float):
            yield {
                "target_name": subject,
                "build": build,
                "model_id": model,
                "scenario_id": scenario,
                column: float(reading),
                "settings": {
                    "machine": body.get("machine"),
                    "subject": body["subjects"].get(subject),
                    "round": number,
                },
            }


def _known_row(name: str) -> tuple[str, str] | None:
    for pattern, scenario, column in ROWS:
        if match := pattern.match(name):
            return scenario.format(match[1]), column
    return None


def _point(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise BenchFileError("a point is a JSON object")
    for name in ("target_name", "model_id", "scenario_id"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise BenchFileError(f"a point has its {name}")
    row: dict[str, Any] = {}
    for given, written in body.items():
        name, value = _column(given, written)
        if name in OF_THE_DATABASE:
            continue
        if name in POINT_TEXTS and isinstance(value, str):
            row[name] = value
        elif name in POINT_NUMBERS and type(value) in (int, float):
            row[name] = float(value)
        elif (name in POINT_COUNTS and type(value) is int and value >= 0) or (
            (name in POINT_FLAGS and isinstance(value, bool))
            or (name in POINT_OBJECTS and isinstance(value, dict))
            or (name in POINT_LISTS and isinstance(value, list))
        ):
            row[name] = value
        elif name == "gpus" and isinstance(value, list):
            row[name] = [str(one) for one in value]
        elif name in ("build_timestamp", "ts") and (moment := moment_of(value)):
            row[name] = moment
        elif value is not None:
            raise BenchFileError(f"a point has no {name} that is {value!r}")
    row["build"] = row.get("build") or row.get("git_sha") or EXTERNAL
    return row


def _column(name: str, value: Any) -> tuple[str, Any]:
    if name in JSON_TEXTS and isinstance(value, str):
        try:
            return JSON_TEXTS[name], json.loads(value)
        except ValueError:
            return name, value
    return name, value
