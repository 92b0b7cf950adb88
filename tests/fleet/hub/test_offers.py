"""What a repository offers, from the names and sizes of its files; and where it fits."""

from __future__ import annotations

from dataclasses import replace

from fleet.catalogue import CatalogueEntry
from fleet.hub.offers import HubRepository, fits, offers_of
from fleet.live.desired_state import DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.live.snapshot import FleetSnapshot
from tests.fleet.placement.fleets import GIB, card, neuron, replica

GGUF = HubRepository(
    name="org/Big-Model-GGUF",
    commit="c0ffee",
    sizes={
        "README.md": 10,
        "big-model-Q4_K_M.gguf": 4 * GIB,
        "big-model-Q8_0-00001-of-00002.gguf": 5 * GIB,
        "big-model-Q8_0-00002-of-00002.gguf": 4 * GIB,
        "mmproj-F16.gguf": GIB,
    },
    gguf_architecture="phi3",
)
DENSE = HubRepository(
    name="org/Dense", commit="c0ffee", sizes={"config.json": 1, "model.safetensors": 2 * GIB}
)


def test_each_quant_is_an_offer_by_size_with_what_speaks_against_it() -> None:
    small, large = offers_of(GGUF)
    assert (small.file, small.num_bytes, small.problem) == ("Q4_K_M", 4 * GIB, None)
    assert (large.file, large.num_bytes, len(large.names)) == ("Q8_0", 9 * GIB, 2)
    assert (small.model_name, large.model_name) == ("big-model-q4_k_m", "big-model-q8_0")
    assert (small.vram_mb, small.projector) == (4506, None), "phi3 reads text"
    for one in offers_of(replace(GGUF, gguf_architecture="rwkv")):
        assert "'rwkv'" in (one.problem or "")
    sizes = {"a/x-Q4_0.gguf": 1, "b/y-Q4_0.gguf": 2}
    first, second = offers_of(replace(GGUF, sizes=sizes))
    assert (first.file, second.file) == tuple(sizes) and first.model_name != second.model_name
    partial = replace(GGUF, sizes={"a-Q8_0-00001-of-00002.gguf": 1})
    assert "00002-of-00002" in (offers_of(partial)[0].problem or "")
    # The mmproj file is part of each, where the model reads images or may.
    sizes = {**GGUF.sizes, "mmproj-BF16.gguf": 2 * GIB}
    for architecture in ("gemma3", "qwen3vl", "llama", None):
        small, large = offers_of(replace(GGUF, sizes=sizes, gguf_architecture=architecture))
        assert small.projector == large.projector == "mmproj-BF16.gguf"
        assert small.names == ("big-model-Q4_K_M.gguf", "mmproj-BF16.gguf")
        assert (small.num_bytes, large.num_bytes) == (6 * GIB, 11 * GIB)
    (dense,) = offers_of(replace(DENSE, safetensors_problem="quantised with 'awq'"))
    assert (dense.file, dense.label, dense.model_name) == (None, "safetensors", "dense")
    assert dense.problem == "quantised with 'awq'"
    assert offers_of(replace(DENSE, sizes={"README.md": 1})) == ()


def away(total: int) -> DesiredState:
    card = KnownDevice(kind="cuda", total_memory_bytes=total * GIB)
    return DesiredState(host=KnownHost(devices=(card,), away_s=70.0))


def test_where_it_fits_is_as_placement_has_it() -> None:
    snapshot = FleetSnapshot(
        neurons=(
            neuron("full", card(free=2)),
            neuron("idle", card(free=2), holds=(replica("other", on="idle", gib=22),)),
            neuron("roomy", card(free=20)),
            neuron("small", card(free=4, total=4)),
        ),
        desired_states=DesiredStates(
            by_neuron={"gone": away(24), "tiny": away(1), "full": away(24)}
        ),
    )
    other = CatalogueEntry(name="other", source="pypi:other", weight_bytes=22 * GIB)
    offer = offers_of(GGUF)[0]
    found = {fit.neuron: (fit.fits, fit.words) for fit in fits(offer, snapshot, {"other": other})}
    assert found == {
        "full": (False, "no room now"),
        "gone": (False, "large enough, but it has been away for 70 s"),
        "idle": (True, "fits when other leaves"),
        "roomy": (True, "fits"),
        "small": (False, "larger than any of its devices"),
        "tiny": (False, "larger than any of its devices"),
    }
