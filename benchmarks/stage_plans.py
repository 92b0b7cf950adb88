"""How long planning a model as stages takes: ``python -m benchmarks.stage_plans [--neurons 100]``.

Fleets of random sizes, with a card or two and processors on each neuron. Prints the median and the
most of many plans for each model, in milliseconds of CPU, which other processes do not stretch.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from fleet.placement.stages import StageDevice, StagePlan, plan_stages
from fleet.placement.stages.devices import BY_KIND, BY_NAME, NETWORK
from inference.loading.costs.model_costs import Kind, KindBytes, LayerCost, ModelCosts

GB = 10**9
CARDS = {"RTX 3060": 12, "RTX 4060 Ti": 16, "RTX 3090": 24, "RTX A6000": 48}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--plans", type=int, default=50)
    arguments = parser.parse_args()
    models = {
        "dense, 40 GB": _model(40, num_experts=0),
        "dense, 140 GB": _model(140, num_experts=0),
        "mixture, 60 GB": _model(60, num_experts=128),
        "dense, 20 TB (refused)": _model(20_000, num_experts=0),
    }
    for name, costs in models.items():
        spent_ms, num_stages = [], 0
        for seed in range(arguments.plans):
            devices = _fleet(random.Random(seed), arguments.neurons)
            began_s = time.process_time()
            plan = plan_stages(costs, devices)
            spent_ms.append(1000 * (time.process_time() - began_s))
            num_stages += len(plan.stages) if isinstance(plan, StagePlan) else 0
        print(
            f"{name:24} median {statistics.median(spent_ms):6.2f} ms, most "
            f"{max(spent_ms):6.2f} ms, {num_stages / arguments.plans:.1f} stages on average"
        )


def _model(gb: float, *, num_experts: int, num_layers: int = 80) -> ModelCosts:
    layer_bytes = 0.97 * gb * GB / num_layers
    experts = int(0.9 * layer_bytes) if num_experts else 0
    others = int(layer_bytes) - experts
    layer = LayerCost(
        weight_bytes=KindBytes(others, others),
        expert_bytes=KindBytes(experts, experts),
        num_weights=others,
        num_expert_weights=experts,
        kv_token_bytes=KindBytes(4096, 4096),
    )
    outer_bytes = int(0.03 * gb * GB)
    return ModelCosts(
        layers=(layer,) * num_layers,
        outer_bytes=KindBytes(outer_bytes, outer_bytes),
        head_bytes=KindBytes(outer_bytes // 2, outer_bytes // 2),
        num_head_weights=outer_bytes // 2,
        hidden_size=8192,
        active_share=8 / num_experts if num_experts else 1.0,
        context_tokens=32_768,
    )


def _fleet(chance: random.Random, num_neurons: int) -> list[StageDevice]:
    devices = []
    for number in range(num_neurons):
        neuron = f"n{number:03}"
        for index in range(chance.choice((1, 1, 2))):
            name = chance.choice(sorted(CARDS))
            free_gb = CARDS[name] * chance.uniform(0.3, 1.0)
            devices.append(_device(neuron, f"cuda:{index}", "cuda", free_gb, name))
        devices.append(_device(neuron, "cpu", "cpu", chance.choice((16, 32, 64)), ""))
    return devices


def _device(neuron: str, name: str, kind: Kind, free_gb: float, card: str) -> StageDevice:
    return StageDevice(
        neuron=neuron,
        name=name,
        kind=kind,
        free_bytes=int(free_gb * GB),
        speed=BY_NAME.get(card, BY_KIND[kind]),
        link=NETWORK,
    )


if __name__ == "__main__":
    main()
