"""How long planning a model as stages takes: ``python -m benchmarks.stage_plans [--neurons 100]``.

Fleets of random sizes, with a card or two and processors on each neuron. Prints the median and the
most of many plans for each model, then of placement's whole decisions about a model over several
hosts, in milliseconds of CPU, which other processes do not stretch. What placement computes once
for all decisions on a snapshot is not among a decision's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Load, place
from fleet.placement.decisions import Catalogue
from fleet.placement.devices.eviction_candidates import capacity_of
from fleet.placement.stages import StageDevice, StagePlan, plan_stages
from fleet.placement.stages.devices import BY_KIND, BY_NAME, NETWORK
from inference.loading.costs.model_costs import Kind, KindBytes, LayerCost, ModelCosts
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus

GB = 10**9
CARDS = {"RTX 3060": 12, "RTX 4060 Ti": 16, "RTX 3090": 24, "RTX A6000": 48}
Result = TypeVar("Result")
Use = Literal["free", "idle", "busy", "pinned"]
"""What all cards of a fleet have on them."""
DECISIONS: dict[str, Use] = {
    "over hosts, on free memory": "free",
    "over hosts, where idle models leave": "idle",
    "over hosts, all in use (refused)": "busy",
    "over hosts, all pinned (refused)": "pinned",
}


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
        timed = Timed()
        for seed in range(arguments.plans):
            devices = _fleet(random.Random(seed), arguments.neurons)
            plan = timed.run(partial(plan_stages, costs, devices))
            timed.num_stages += len(plan.stages) if isinstance(plan, StagePlan) else 0
        timed.print(name)
    entry = CatalogueEntry(
        name="large",
        source="huggingface:org/large",
        device="cuda",
        spread="fleet",
        costs=_model(200, num_experts=0),
    )
    for name, use in DECISIONS.items():
        timed = Timed()
        for seed in range(arguments.plans):
            snapshot = _snapshot(random.Random(seed), arguments.neurons, use)
            catalogue = _catalogue(entry, snapshot, use)
            capacity_of(snapshot, catalogue)
            decision = timed.run(partial(place, entry, snapshot, catalogue=catalogue))
            timed.num_stages += len(decision.stages) if isinstance(decision, Load) else 0
        timed.print(name)


class Timed:
    """CPU time of many calls."""

    def __init__(self) -> None:
        self.spent_ms: list[float] = []
        self.num_stages = 0

    def run(self, call: Callable[[], Result]) -> Result:
        began_s = time.process_time()
        result = call()
        self.spent_ms.append(1000 * (time.process_time() - began_s))
        return result

    def print(self, name: str) -> None:
        spent_ms = self.spent_ms
        print(
            f"{name:36} median {statistics.median(spent_ms):6.2f} ms, most "
            f"{max(spent_ms):6.2f} ms, {self.num_stages / len(spent_ms):.1f} stages on average"
        )


def _snapshot(chance: random.Random, num_neurons: int, use: Use) -> FleetSnapshot:
    """The fleet of ``_fleet``, whose cards are full of a model each unless they are free."""
    by_neuron: dict[str, list[StageDevice]] = {}
    for device in _fleet(chance, num_neurons):
        by_neuron.setdefault(device.neuron, []).append(device)
    return FleetSnapshot(
        neurons=tuple(
            NeuronView(
                name=name,
                epoch="epoch",
                version="0",
                stage_host=f"{name}.lan",
                devices=tuple(_info(device, use) for device in devices),
                replicas=tuple(
                    _replica(device, use)
                    for device in devices
                    if use != "free" and device.kind == "cuda"
                ),
            )
            for name, devices in by_neuron.items()
        )
    )


def _info(device: StageDevice, use: Use) -> DeviceInfo:
    is_full = use != "free" and device.kind == "cuda"
    return DeviceInfo(
        kind=device.kind,
        name=device.name,
        index=int(device.name.partition(":")[2] or 0),
        total_memory_bytes=device.free_bytes,
        free_memory_bytes=0 if is_full else device.free_bytes,
    )


def _replica(device: StageDevice, use: Use) -> ReplicaView:
    return ReplicaView(
        neuron=device.neuron,
        model=f"{device.neuron}-{device.name}",
        job_id="job",
        status=ReplicaStatus.READY,
        status_age_s=600.0,
        devices=(device.name,),
        memory_bytes=device.free_bytes,
        last_used_age_s=600.0,
        in_flight=1 if use == "busy" else 0,
    )


def _catalogue(entry: CatalogueEntry, snapshot: FleetSnapshot, use: Use) -> Catalogue:
    others = (
        CatalogueEntry(name=one.model, source="huggingface:org/small", pinned=use == "pinned")
        for one in snapshot.replicas()
    )
    return {one.name: one for one in (entry, *others)}


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
