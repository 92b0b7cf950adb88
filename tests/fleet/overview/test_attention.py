"""What needs attention first: one table of cases."""

from __future__ import annotations

from typing import Any

from fleet.overview.attention import LIMITS, attention
from fleet.overview.lines import ModelLine, NeuronLine, ReplicaLine
from inference.protocol.refusals import Cause, Refused
from metering.selectors import BudgetStatus
from tests.cases import each_case

VERSION = "2.0"


def neuron(name: str = "beast", **changes: Any) -> NeuronLine:
    nothing: dict[str, Any] = dict.fromkeys(("problems", "devices", "replicas"), ())
    return NeuronLine(**{"name": name, "status": "online", "version": VERSION} | nothing | changes)


def replica(**changes: Any) -> ReplicaLine:
    counts = ("in_flight", "queue_depth", "kv_blocks_used", "kv_blocks_total")
    values: dict[str, Any] = dict.fromkeys((*counts, "decode_tokens_per_s"), 0)
    values |= {"id": 1, "model": "tiny", "status": "ready", "is_outdated": False}
    return ReplicaLine(**values | {"devices": ("cuda:0",), "memory_bytes": None} | changes)


def model(replicas: int, min_replicas: int) -> ModelLine:
    status = "ready" if replicas else "unloaded"
    numbers = {"replicas": replicas, "min_replicas": min_replicas, "max_replicas": 4}
    return ModelLine(name="tiny", status=status, pinned=False, **numbers)


def budget(left: int, **changes: Any) -> BudgetStatus:
    values: dict[str, Any] = {"id": 1, "on": "account", "owner": "research", "unit": "micro_usd"}
    values |= {"cap": 10_000_000, "spent": 10_000_000 - left, "reserved": 0, "left": left}
    values |= {"window": "balance", "window_s": None, "window_ends_unix_s": None}
    return BudgetStatus(**values | changes)


WELL: dict[str, Any] = {
    "neurons": (neuron(replicas=(replica(),), disk_total_bytes=100, disk_free_bytes=50),),
    "models": (model(1, 1),),
    "budgets": (),
    "is_live": True,
}


def of_neuron(**changes: Any) -> dict[str, Any]:
    return {"neurons": (neuron(**changes),)}


def of_replica(**changes: Any) -> dict[str, Any]:
    return of_neuron(replicas=(replica(**changes),))


def by_a_limit(account: str, cause: str = "") -> Refused:
    return Refused("rate_limit_exceeded", account, cause=cause)


def by_a_break(account: str, key: str = "") -> Refused:
    return Refused("request_broke_worker", account, key)


DISK = {"disk_total_bytes": 100}
OTHERS = (
    neuron(version="1.0", problems=("it runs helexa 1.0, and the control 2.0",)),
    neuron("box", version="1.5"),
    neuron("new"),
)
CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"is_live": False}, ["urgent redis_away: Redis does not answer"]),
    ({"neurons": ()}, ["warning no_neuron: no neuron has joined yet"]),
    (of_neuron(status="away", version="1.0"), ["urgent neuron_away: beast is away"]),
    (of_neuron(status="refused"), ["notice neuron_refused: beast is not admitted"]),
    (of_neuron(problems=("no driver",)), ["warning neuron_problem: beast: no driver"]),
    (
        of_replica(status="failed", failure="out of memory"),
        ["urgent model_failing: tiny failed on beast: out of memory"],
    ),
    (of_replica(is_outdated=True), ["warning outdated: tiny on beast is outdated: reload it"]),
    (of_replica(is_outdated=True, status="draining"), []),
    (
        {"neurons": OTHERS},
        ["warning version_mismatch: not of this version, 2.0: beast (1.0), box (1.5)"],
    ),
    (of_neuron(**DISK, disk_free_bytes=10), []),
    (
        of_neuron(**DISK, disk_free_bytes=9),
        ["warning disk_nearly_full: the disk of beast is nearly full: 9%"],
    ),
    (
        of_neuron(**DISK, disk_free_bytes=1),
        ["urgent disk_nearly_full: the disk of beast is nearly full: 1%"],
    ),
    ({"models": (model(0, 1),)}, ["urgent too_few_replicas: tiny has 0 of at least 1 replicas"]),
    ({"models": (model(1, 2),)}, ["warning too_few_replicas: tiny has 1 of at least 2 replicas"]),
    (
        {"budgets": (budget(500_000),)},
        ["notice budget_nearly_spent: the budget of the account research: $0.50 of $10.00 are"],
    ),
    (
        {"budgets": (budget(0, unit="tokens", on="key", owner="hx-1"),)},
        ["notice budget_spent: the budget of the key hx-1: 0 tokens of 10,000,000 tokens"],
    ),
    (
        {
            "refused": {
                by_a_limit("research", "requests_per_minute"): 1200,
                by_a_limit("research", "key_budget"): 30,
                by_a_limit("old"): 20,
                by_a_limit("crowd", "queue_share"): 5,
                Refused("insufficient_quota", "lab", cause="account_budget"): 1,
                Refused("model_not_found", "research"): 9,
                by_a_limit(""): 9,
            }
        },
        [
            f"notice account_refused: {text}"
            for text in (
                "research was refused 1,200 times lately by a limit of requests a minute",
                "research was refused 30 times lately by a key's budget",
                "old was refused 20 times lately by its limits or its",
                "crowd was refused 5 times lately by a queue, of whose",
                "lab was refused once lately by its budget",
            )
        ],
    ),
    (
        {
            "refused": {
                by_a_break("research", "hx-bad"): 3,
                by_a_break("research", "hx-unlucky"): 2,
                by_a_break("anonymous"): 4,
            }
        },
        [
            "urgent key_breaks_workers: the key hx-bad of research sent 3 requests lately that",
            "urgent key_breaks_workers: anonymous sent 4 requests lately",
        ],
    ),
    (
        {
            "neurons": (neuron(problems=("no driver",)), neuron("gone", status="away")),
            "budgets": (budget(0),),
        },
        [
            "urgent neuron_away: gone is away",
            "warning neuron_problem: beast: no driver",
            "notice budget_spent",
        ],
    ),
    (
        {"budgets": (budget(0),), "refused": {Refused("insufficient_quota", "research"): 17}},
        ["notice budget_spent: the budget of the account research: $0.00"],
    ),
]


@each_case(("changes", "expected"), CASES)
def test_cases(changes: dict[str, Any], expected: list[str]) -> None:
    found = attention(version=VERSION, **WELL | changes)
    assert len(found) == len(expected)
    for finding, text in zip(found, expected, strict=True):
        assert f"{finding.level} {finding.kind}: {finding.text}".startswith(text)


def test_every_cause_has_its_words() -> None:
    assert LIMITS.keys() == set(Cause)
