"""``models plan``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from urllib.parse import quote

from fleet.management.sizes import size_text
from fleet.management.subcommands import Run
from metering.management.output import table_text

COLUMNS = ("device", "layers", "weights", "KV", "beside", "free")


class Plan:
    name = "plan"
    help = "on which devices a model would lie, how fast, and what else would fit; loads nothing"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="MODEL")

    def run(self, run: Run) -> None:
        name = run.options["name"]
        found = run.backend.ask("GET", f"catalogue/{quote(name, safe='')}/plan")
        run.show(found, _text(found))


def _text(found: dict[str, Any]) -> str:
    weights = size_text(found["weight_bytes"])
    parts = [f"{found['model']}: {found['num_layers']} layers, {weights} of weights on its devices"]
    if found["plan"] is None:
        parts.append(f"No plan: {found['refusal']}")
    else:
        parts += [_speed(found["plan"]), _stages(found["plan"])]
    for one in found["alternatives"]:
        parts += [f"{one['words'].capitalize()}: {_speed(one)}", _stages(one)]
    return "\n\n".join([*parts, found["note"]])


def _speed(plan: dict[str, Any]) -> str:
    return (
        f"predicted {plan['tokens_per_s']:.1f} tokens/s for one request and "
        f"{plan['tokens_per_s_of_16']:.1f} for 16, of which {plan['num_running']} run at once; "
        f"{plan['kv_tokens']} tokens of keys and values"
    )


def _stages(plan: dict[str, Any]) -> str:
    rows = [
        [
            f"{stage['neuron']} {stage['device']}",
            f"{stage['first_layer']}-{stage['last_layer'] - 1}",
            size_text(stage["weight_bytes"]),
            size_text(stage["kv_bytes"]),
            size_text(stage["beside_bytes"]),
            size_text(stage["free_bytes"]),
        ]
        for stage in plan["stages"]
    ]
    return table_text(COLUMNS, rows)
