"""The alert rules and the dashboard ask for metrics, labels and statuses that a gateway exports."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fleet.lifecycles import LoadJobStatus
from fleet.live.desired_state import NO_DESIRED_STATES
from fleet.live.snapshot import build_snapshot
from inference.gateway.metrics import Metrics
from inference.gateway.metrics_endpoint import DatabaseCounts, database_metrics, fleet_metrics
from inference.protocol.heartbeat import ReplicaStatus
from metering.ledger.entries import Outcome
from tests.fleet.conftest import device, heartbeat, replica
from tests.inference.gateway.metrics.test_metrics import ended
from tests.inference.reports import engine_stats

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "packaging" / "monitoring"
WATCHED = re.compile(r'metrics\.watch(?:_(total))?\(\s*"(\w+)"')
OF_PROMETHEUS = {"up": {"job", "instance"}, "process_resident_memory_bytes": set()}
"""What every scrape has."""
OF_A_SCRAPE = {"job", "instance", "le"}
METRIC = re.compile(r"\b(?:helexa|cortex)_\w+")
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
VALUES = {
    ("helexa_replica_status", "status"): {status.value for status in ReplicaStatus},
    ("helexa_load_jobs", "state"): set(LoadJobStatus.values),
    ("cortex_model_rejections_total", "reason"): {"queue_full", "wait_timeout", "per_principal"},
}


@cache
def exported() -> dict[str, set[str]]:
    """Names of series and their labels, of a gateway that has seen a request and a neuron."""
    metrics = Metrics()
    metrics.observe(ended(was_cold=True))
    metrics.observe(ended(kind=Outcome.REFUSED, status=503, outcome="queue_full"))
    full = device(utilization_percent=1, temperature_c=40)
    snapshot = build_snapshot(
        [
            heartbeat(
                "beast",
                devices=[full],
                replicas=[replica(stats=engine_stats(last_forward_unix_s=1.0))],
            )
        ],
        NO_DESIRED_STATES,
        (),
    )
    counts = DatabaseCounts(load_jobs={"pending": 1}, reservations=1)
    series: dict[str, set[str]] = {name: set(labels) for name, labels in OF_PROMETHEUS.items()}
    of_fleet = (*fleet_metrics(snapshot), *database_metrics(counts))
    for family in (*metrics.registry.collect(), *of_fleet):
        if family.type != "histogram":
            series.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    for path in (ROOT / "inference" / "gateway").rglob("*.py"):
        for suffix, name in WATCHED.findall(path.read_text()):
            series[f"{name}_{suffix}" if suffix else name] = set()
    return series


RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "helexa-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


def expressions() -> dict[str, str]:
    panels = json.loads((MONITORING / "helexa-dashboard.json").read_text())["panels"]
    asked = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels
        for target in panel.get("targets", ())
    }
    return asked | {rule["alert"]: rule["expr"] for rule in RULES}


def faults(expression: str) -> list[str]:
    """What no gateway has."""
    found = [
        f"nobody exports {name}" for name in METRIC.findall(expression) if name not in exported()
    ]
    found += [
        f"{one} is unbalanced"
        for one in ("()", "{}", "[]")
        if len(set(map(expression.count, one))) > 1
    ]
    for name, matchers in SELECTOR.findall(expression):
        for label, value in MATCHER.findall(matchers):
            if label not in exported().get(name, set()) | OF_A_SCRAPE:
                found.append(f"{name} has no label {label}")
            if not set(value.split("|")) <= VALUES.get((name, label), {*value.split("|")}):
                found.append(f"{name} is never {value}")
    return found


def test_what_is_asked_for_is_exported_and_alerts_are_whole() -> None:
    found = {name: faults(expression) for name, expression in expressions().items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) > 0
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
