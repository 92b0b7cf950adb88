"""``helexa-bench.toml`` in the original's format. Pure.

The original's ``chat:<n>`` sent the same prompt each time, which a prefix cache served: each
becomes both ``chat:<n>`` and ``chat:<n>:warm`` here. Scenarios of earlier releases are left out
with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from metering.bench.errors import BenchError, BenchValueError
from metering.bench.scenarios import parse_scenarios

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
