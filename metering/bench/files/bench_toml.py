"""``helexa-bench.toml`` in the original's format. Pure.

The original's ``chat:<n>`` sent the same prompt each time, so that a prefix cache served it: a size
of its becomes both ``chat:<n>`` and ``chat:<n>:warm`` here. Scenarios of earlier releases are left
out with a remark.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metering.bench.errors import BenchFileError, BenchValueError
from metering.bench.sweeps.scenarios import parse_scenarios

PLAN_NAMES = {
    "sweep_interval_secs": "sweep_interval_s",
    "samples_per_version": "samples_per_version",
    "iteration_pause_secs": "iteration_pause_s",
    "request_timeout_secs": "request_timeout_s",
}
TARGET_NAMES = {
    "name": "name",
    "kind": "kind",
    "endpoint": "endpoint",
    "label": "label",
    "models": "only_models",
    "scenarios": "scenarios",
    "api_key_env": "api_key_env",
    "build": "build",
    "hostname": "hostname",
    "gpus": "gpus",
}
"""The original knows the first four."""
LEFT_OUT = {
    ("bench", "db_path"): "results are in this server's database",
    ("api", "enabled"): "the API is this server's",
    ("api", "listen"): "the API is this server's",
    ("scenarios", "image_sizes"): "no images are measured",
    ("scenarios", "capability_probes"): "answers are not scored",
}
GONE_KINDS = frozenset({"context", "swap", "tools", "structured", "capability", "embedding"})
NUMBERS = (int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchToml:
    plan: Mapping[str, Any]
    """Columns of ``SweepPlan`` that the file names."""
    targets: tuple[Mapping[str, Any], ...]
    """Columns of ``BenchTarget``."""
    remarks: tuple[str, ...]
    """What of the file has no meaning here."""


def read_bench_toml(text: str) -> BenchToml:
    """Raises ``BenchFileError``."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BenchFileError(f"no TOML: {error}") from error
    remarks: list[str] = []
    for name in table:
        if name not in ("bench", "scenarios", "api", "targets"):
            raise BenchFileError(f"there is no [{name}]")
    for name in _table(table, "api"):
        _left_out("api", name, remarks)
    targets = table.get("targets", [])
    if not isinstance(targets, list):
        raise BenchFileError("targets are written as [[targets]]")
    plan = {**_bench(_table(table, "bench"), remarks)}
    plan |= _scenarios(_table(table, "scenarios"), remarks)
    found = tuple(_target(target, remarks) for target in targets)
    return BenchToml(plan=plan, targets=found, remarks=tuple(remarks))


def _bench(table: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    plan = {}
    for name, value in table.items():
        if name in PLAN_NAMES:
            plan[PLAN_NAMES[name]] = _number(f"bench.{name}", value)
        else:
            _left_out("bench", name, remarks)
    if "samples_per_version" in plan:
        plan["samples_per_version"] = int(plan["samples_per_version"])
    return plan


def _scenarios(table: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    ids: list[str] = []
    for name, value in table.items():
        match name:
            case "prompt_sizes":
                for size in _list(name, value):
                    ids += [f"chat:{size}", f"chat:{size}:warm"]
            case "concurrency_levels":
                ids += [f"concurrency:{level}" for level in _list(name, value)]
            case "ids":
                ids += _measured(_list(name, value), remarks)
            case "max_tokens" | "concurrency_prompt_tokens":
                plan[name] = int(_number(f"scenarios.{name}", value))
            case _:
                _left_out("scenarios", name, remarks)
    if ids:
        try:
            plan["scenarios"] = [scenario.id for scenario in parse_scenarios(ids)]
        except BenchValueError as error:
            raise BenchFileError(str(error)) from error
    return plan


def _target(table: Any, remarks: list[str]) -> dict[str, Any]:
    if not isinstance(table, dict) or not {"name", "kind", "endpoint"} <= table.keys():
        raise BenchFileError("a target has a name, a kind and an endpoint")
    if extra := table.keys() - TARGET_NAMES.keys():
        raise BenchFileError(f"a target has no {', '.join(sorted(extra))}")
    target = {TARGET_NAMES[name]: value for name, value in table.items()}
    if scenarios := target.get("scenarios"):
        target["scenarios"] = _measured(_list("scenarios", scenarios), remarks)
        if not target["scenarios"]:
            target["enabled"] = False
            remarks.append(f"{target['name']} is disabled: none of its scenarios is measured")
    return target


def _measured(ids: list[Any], remarks: list[str]) -> list[str]:
    """The scenarios without those that are gone."""
    texts = list(map(str, ids))
    gone = [text for text in texts if text.partition(":")[0] in GONE_KINDS]
    remarks += [f"{text} is left out: it is no longer measured" for text in gone]
    return [text for text in texts if text not in gone]


def _left_out(table: str, name: str, remarks: list[str]) -> None:
    reason = LEFT_OUT.get((table, name))
    if reason is None:
        raise BenchFileError(f"there is no {table}.{name}")
    remarks.append(f"{table}.{name} is left out: {reason}")


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = parent.get(name, {})
    if not isinstance(table, dict):
        raise BenchFileError(f"{name} is no table")
    return table


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BenchFileError(f"{name} is no list")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in NUMBERS or value < 0:
        raise BenchFileError(f"{name} is no number from 0 up")
    return float(value)
