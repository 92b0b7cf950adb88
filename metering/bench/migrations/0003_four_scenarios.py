"""Takes scenarios that are no longer measured out of the plan and the targets."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

GONE = frozenset({"swap", "tools", "structured", "capability", "embedding"})


def keep_measured_scenarios(apps: Any, _schema_editor: Any) -> None:
    """``context:8192`` sent what ``chat:8192:warm`` sends. A target all of whose scenarios are
    gone is disabled: without any it would be measured in the plan's."""
    for plan in apps.get_model("bench", "SweepPlan").objects.all():
        if (scenarios := _measured(plan.scenarios)) != plan.scenarios:
            plan.scenarios = scenarios
            plan.save(update_fields=["scenarios"])
    for target in apps.get_model("bench", "BenchTarget").objects.all():
        if (scenarios := _measured(target.scenarios)) != target.scenarios:
            target.scenarios = scenarios
            target.enabled = target.enabled and bool(scenarios)
            target.save(update_fields=["scenarios", "enabled"])


def _measured(scenarios: list[str]) -> list[str]:
    kept = []
    for scenario in scenarios:
        kind, _, size = scenario.strip().partition(":")
        if kind not in GONE:
            kept.append(f"chat:{size}:warm" if kind == "context" else scenario)
    return list(dict.fromkeys(kept))


class Migration(migrations.Migration):
    dependencies = [("bench", "0002_jobs")]

    operations = [
        migrations.RunPython(keep_measured_scenarios, migrations.RunPython.noop, elidable=True),
        # Its help text alone: there is no form of it any more.
        migrations.AlterField(
            model_name="sweepplan", name="probes", field=models.JSONField(blank=True, default=list)
        ),
    ]
