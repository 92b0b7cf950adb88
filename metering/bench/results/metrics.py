"""The numbers of a run that are compared between builds: which way is better. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metering.bench.sweeps.scenarios import ScenarioKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """The column of a run."""
    label: str
    unit: str
    more_is_better: bool


TTFT = Metric(name="ttft_s", label="TTFT", unit="s", more_is_better=False)
TTFT_P95 = Metric(name="ttft_p95_s", label="TTFT p95", unit="s", more_is_better=False)
DECODE = Metric(name="decode_tps", label="decode", unit="tok/s", more_is_better=True)
PREFILL = Metric(name="prefill_tps", label="prefill", unit="tok/s", more_is_better=True)
TOTAL = Metric(name="total_s", label="total", unit="s", more_is_better=False)
QUALITY = Metric(name="quality_score", label="score", unit="", more_is_better=True)
LOAD = Metric(name="swap_load_ms", label="load", unit="ms", more_is_better=False)
UNLOAD = Metric(name="swap_unload_ms", label="unload", unit="ms", more_is_better=False)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (TTFT, TTFT_P95, DECODE, PREFILL, TOTAL, QUALITY, LOAD, UNLOAD)
}
JUDGED: Mapping[ScenarioKind, tuple[Metric, ...]] = {
    ScenarioKind.CHAT: (DECODE, TTFT, PREFILL),
    ScenarioKind.PREFILL: (PREFILL, TTFT),
    ScenarioKind.CONCURRENCY: (DECODE, TTFT_P95),
    ScenarioKind.LOAD: (LOAD, UNLOAD),
}
"""Those that show that a build got worse. An answer's whole time depends on its length."""


def judged_metrics(scenario_id: str) -> tuple[Metric, ...]:
    """Returns the metrics that a scenario is judged by. Imported results may have a scenario that
    is none of ours: their speeds and times are judged."""
    try:
        return JUDGED[ScenarioKind(scenario_id.partition(":")[0])]
    except ValueError:
        return DECODE, TTFT, PREFILL
