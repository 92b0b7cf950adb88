"""The native decoder is given nothing that is not as large as it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inference.models.errors import UnfitWeightsError
from inference.models.layer_configs import ExpertsConfig
from inference.models.native.layers import Angles, NativeExperts, NativeJoin, NativeLayer
from inference.models.native.packing import Format, PackedLinear, unwritten
from inference.models.stored_weights import DenseWeight
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    build,
    norm,
    pack_dense,
)
from tests.inference.models.stored_weights import stored_as

EXPERTS = ExpertsConfig(num_experts=2, experts_per_token=1, intermediate_size=64)
Change = Callable[[NativeLayer], NativeLayer]


def packed(out_features: int, in_features: int, format: Format = Format.Q8) -> PackedLinear:
    return unwritten(stored_as(format, out_features, in_features, seed=1), out_features, None)


def layer() -> NativeLayer:
    angles = torch.zeros(CONFIG.max_positions, HEAD_DIM // 2)
    return NativeLayer(
        qkv=[packed(HIDDEN, HIDDEN), packed(HIDDEN, HIDDEN, Format.Q4_K)],
        output=[packed(HIDDEN, HIDDEN)],
        gate_up=[packed(2 * INTERMEDIATE, HIDDEN)],
        down=[packed(HIDDEN, INTERMEDIATE, Format.Q6_K)],
        input_norm=norm(),
        mlp_norm=norm(),
        angles=Angles(angles, angles.clone()),
    )


def sparse(**changes: Any) -> NativeLayer:
    router = pack_dense(torch.zeros(2, HIDDEN))
    gate_up, down = [[packed(128, HIDDEN)]] * 2, [[packed(HIDDEN, 64)]] * 2
    experts = NativeExperts(config=EXPERTS, router=router, gate_up=gate_up, down=down)
    return replace(layer(), experts=replace(experts, **changes))


def join(product: PackedLinear, width: int = HIDDEN) -> NativeJoin:
    return NativeJoin(embedding_norm=norm(), hidden_norm=norm(width), product=product)


def check(library: ctypes.CDLL, of: NativeLayer, **changes: Any) -> None:
    table = packed(CONFIG.vocab_size, HIDDEN)
    config = {} if of.experts is None else {"experts": EXPERTS, "mlps": ("sparse",)}
    config |= changes.pop("config", {})
    build(library, table, table, of, given=changes, **config).close()


def test_what_fits_passes(library: ctypes.CDLL) -> None:
    check(library, layer(), join=join(packed(HIDDEN, 2 * HIDDEN)))
    check(library, sparse())
    for format in Format:
        weight = stored_as(format or Format.Q8, 40, 256, seed=1)
        part = unwritten(weight if format else DenseWeight(weight=weight.dequantize()), 40, None)
        of = replace(layer(), gate_up=[packed(512, HIDDEN)], down=[part, packed(HIDDEN - 40, 256)])
        check(library, of, config={"intermediate_size": 256})


def output(of: NativeLayer, **changes: Any) -> NativeLayer:
    return replace(of, output=[replace(of.output[0], **changes)])


def angled(of: NativeLayer, width: int, num_sines: int = 128) -> NativeLayer:
    return replace(of, angles=Angles(torch.zeros(128, width), torch.zeros(num_sines, width)))


LAYERS: list[tuple[Change, str]] = [
    (lambda of: replace(of, qkv=of.qkv[:1]), "layer 0: qkv has 1 parts with 256 outputs; 512"),
    (lambda of: replace(of, qkv=[packed(512, 224)]), "qkv is 512 x 224; 512 x 256"),
    (lambda of: replace(of, output=[packed(192, HIDDEN)]), "output has 1 parts with 192"),
    (lambda of: replace(of, gate_up=[packed(INTERMEDIATE, HIDDEN)]), "gate_up has 1 parts"),
    (lambda of: replace(of, down=[packed(HIDDEN, 480)]), "down is 256 x 480; 256 x 512"),
    (lambda of: replace(of, down=()), "down has 0 parts"),
    (lambda of: replace(of, input_norm=norm(255)), r"input norm is \(255,\); \(256,\)"),
    (lambda of: replace(of, query_norm=torch.ones(63)), r"query_norm is \(63,\); \(64,\)"),
    (lambda of: angled(of, 40), r"cosines is \(128, 40\); \(128, 32\)"),
    (lambda of: angled(of, 32, 64), r"sines is \(64, 32\); \(128, 32\)"),
    (lambda of: output(of, bias=torch.zeros(255)), r"output: bias is \(255,\)"),
    (
        lambda of: output(of, panels=of.output[0].panels[:-1]),
        "output has [0-9]+ bytes; [0-9]+ are read",
    ),
]
EXPERT_PARTS: list[tuple[dict[str, Any], str]] = [
    ({"down": [[packed(HIDDEN, 64)]]}, "1 experts for 2"),
    ({"router": pack_dense(torch.zeros(3, HIDDEN))}, "router is 3 x 256; 2 x 256"),
    ({"router": packed(2, HIDDEN)}, "the router is of Q8"),
    ({"choice_bias": torch.zeros(1)}, r"choice_bias is \(1,\)"),
    ({"down": [[packed(HIDDEN, 64)], [packed(HIDDEN, 32)]]}, "down of expert 1 is 256 x 32"),
    ({"gate_up": [[packed(128, HIDDEN)], [packed(128, HIDDEN, Format.Q4)]]}, "several formats"),
]
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"embedding": packed(49, HIDDEN)}, "the embedding has 49 rows; 50 are read"),
    ({"head": packed(50, 224)}, "the head is 50 x 224; 50 x 256"),
    ({"final_norm": norm(255)}, r"the final norm: final norm is \(255,\)"),
    ({"join": join(packed(HIDDEN, HIDDEN))}, "the join is 256 x 256; 256 x 512"),
    ({"join": join(packed(HIDDEN, 2 * HIDDEN), 255)}, r"hidden norm is \(255,\); \(256,\)"),
    ({"config": {"num_layers": 2}}, "1 layers for 2"),
    ({"config": {"num_kv_heads": 3}}, "4 heads for 3 of keys and values"),
]


@each_case(
    ("of", "changes", "words"),
    [
        *((change(layer()), {}, words) for change, words in LAYERS),
        *((sparse(**changes), {}, words) for changes, words in EXPERT_PARTS),
        *((layer(), changes, words) for changes, words in OTHERS),
    ],
)
def test_a_part_of_another_size_is_named(
    library: ctypes.CDLL, of: NativeLayer, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnfitWeightsError, match=words):
        check(library, of, **changes)
