"""Plans of catalogue models, by REST and by ``models plan``: nothing is loaded for them. Models
that no host could ever run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management.base import CommandError

from fleet import services
from fleet.catalogue import CatalogueEntry
from fleet.models import LoadJob
from fleet.overview import why_no_host, why_not_now
from fleet.overview_lines import DeviceLine, NeuronLine
from metering.audit import COMMAND
from tests.fleet.commands.conftest import RunCommand, run_command
from tests.fleet.conftest import GIB, offer
from tests.fleet.hub.conftest import LLAMA, hub

__all__ = ["hub", "run_command"]
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


def cards(build: Any, *gib: int) -> list[Any]:
    return [
        build.device(
            kind="cuda", index=index, total_memory_bytes=one * GIB, free_memory_bytes=one * GIB
        )
        for index, one in enumerate(gib)
    ]


@pytest.fixture
def plan(run_command: RunCommand) -> Callable[[str], dict[str, Any]]:
    return lambda model: json.loads(run_command("models", "plan", model, "--json"))


def test_a_plan_is_shown_and_loads_nothing(run_command, plan, beat, build, large) -> None:
    offer("large", source=large)
    beat(devices=[*cards(build, 8), build.device(free_memory_bytes=2 * GIB)])
    text = run_command("models", "plan", "large")
    assert "No plan: its 40 layers need" in text
    assert "cuda:0 of beast has 8.6 GB free" in text
    assert "were nothing loaded" not in text.partition("No plan")[0]
    beat(devices=[*cards(build, 16, 12), build.device(free_memory_bytes=15 * GIB)])
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
        beat(name, devices=cards(build, 12))
    # No host lends stages, and none could hold it.
    assert planned("wide") == planned("large") == planned("whole") == (None, [])
    for name in ("attic", "cellar"):
        beat(name, devices=cards(build, 12), stage_host=f"{name}.lan")
    assert planned("wide") == (["attic cuda:0", "cellar cuda:0"], [])
    assert planned("large") == (None, ["over several hosts, with spread fleet"])
    assert planned("whole") == (None, [])
    # One host could hold it, over two cards.
    beat("beast", devices=cards(build, 16, 12))
    assert planned("wide")[0] == planned("large")[0] == ["beast cuda:0", "beast cuda:1"]
    assert planned("whole")[0] is None
    # A card could hold it, were nothing else on it: that leaves, and nothing is divided.
    full = msgspec.structs.replace(*cards(build, 24), free_memory_bytes=4 * GIB)
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


def host(name: str, *sizes: float, status: str = "online", kind: str = "cuda") -> NeuronLine:
    """With a device of each of these sizes in GiB."""
    devices = tuple(
        DeviceLine(
            id=f"{kind}:{index}",
            name=f"the {kind}",
            total_memory_bytes=int(size * GIB),
            free_memory_bytes=0,
        )
        for index, size in enumerate(sizes)
    )
    return NeuronLine(
        name=name, status=status, version="", problems=(), devices=devices, replicas=()
    )


def test_why_no_host_can_run_it() -> None:
    """The words of each need have their cases in ``tests/fleet/placement/test_place.py``."""
    small, large = {"vram_mb": 20 * 1024}, {"vram_mb": 40 * 1024}
    nobody = "it needs a card or a processor of {} GiB or more{}"
    processor, card = host("b", 16, kind="cpu"), host("a", 24)
    card = replace(card, devices=(*card.devices, *host("a", 64, kind="cpu").devices))
    away, refused = (host("c", 64, status=word, kind="cpu") for word in ("away", "refused"))
    beside = ", and the largest is the cpu of b with 16.0 GiB"
    for settings, hosts, why in (
        (small, [card], ""),
        (large, [card], ""),  # its processors have the room
        (large, [], ""),  # no fleet yet
        (large, [processor, away], ""),
        (large, [processor], nobody.format("40.0", beside)),
        (small, [refused], nobody.format("20.0", ", and no host has one")),
        (
            small | {"pinned_on": ("b",)},
            [card, processor],
            nobody.format("20.0", f" on b, by its pinned_on{beside}"),
        ),
    ):
        entry = CatalogueEntry(name="tiny", source="pypi:tiny", **settings)
        assert why_no_host(entry, hosts) == why
    of_20 = CatalogueEntry(name="tiny", source="pypi:tiny", **small)
    draining, gone = host("a", 24, status="draining"), host("d", 24, status="away")
    for hosts, words in (
        ([draining, gone, processor], "a is draining, d is away"),
        ([draining, host("e", 24)], ""),
        ([processor], ""),
    ):
        assert why_not_now(of_20, hosts) == words
