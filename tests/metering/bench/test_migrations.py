"""Rows of earlier releases."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps

from metering.bench.models import BenchTarget, SweepPlan
from metering.bench.store import plan_find, row_check


@pytest.mark.django_db
def test_scenarios_that_are_gone_leave_the_plan_and_the_targets() -> None:
    named = ["chat:9", "context:512", "swap", "tools", "structured", "capability:pier", "embedding"]
    SweepPlan.objects.create(pk=1, scenarios=named, probes=[{"name": "pier"}], max_tokens=7)
    for name, scenarios in (("a", [*named, "load"]), ("b", ["tools"]), ("c", []), ("d", ["load"])):
        BenchTarget.objects.create(
            name=name, kind="openai", endpoint="http://x", scenarios=scenarios
        )
    module = import_module("metering.bench.migrations.0003_four_scenarios")
    module.keep_measured_scenarios(apps, None)
    plan = plan_find()
    row_check(plan)
    assert plan.scenarios == ["chat:9", "chat:512:warm"]
    assert plan.max_tokens == 7
    targets = list(BenchTarget.objects.all())
    for target in targets:
        row_check(target)
    found = {target.name: (target.scenarios, target.enabled) for target in targets}
    assert found == {
        "a": (["chat:9", "chat:512:warm", "load"], True),
        "b": ([], False),
        "c": ([], True),
        "d": (["load"], True),
    }
