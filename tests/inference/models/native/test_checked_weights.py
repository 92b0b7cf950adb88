"""The native decoder is given nothing that is not as large as it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from inference.models.errors import UnfitWeightsError
from inference.models.layer_configs import ExpertsConfig
from inference.models.native.checked_weights import WeightCheck
from inference.models.native.layers import (
    Angles,
    NativeExperts,
    NativeJoin,
    NativeLayer,
    NativeNorm,
)
from inference.models.native.packing import Format, PackedLinear, pack, unwritten
from inference.models.weights.stored import DenseWeight
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
)
from tests.inference.models.stored_weights import stored_as

ONE = replace(CONFIG, num_layers=1)
EXPERTS = ExpertsConfig(num_experts=2, experts_per_token=1, intermediate_size=64)
SPARSE = replace(ONE, experts=EXPERTS, mlps=("sparse",))
Change = Callable[[NativeLayer], NativeLayer]


def packed(out_features: int, in_features: int, format: Format = Format.Q8) -> PackedLinear:
    return unwritten(stored_as(format, out_features, in_features, seed=1), out_features, None)


def norm(size: int = HIDDEN) -> NativeNorm:
    return NativeNorm(torch.ones(size))


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


def experts() -> NativeExperts:
    router = pack(DenseWeight(weight=torch.zeros(2, HIDDEN)))
    gate_up, down = [[packed(128, HIDDEN)]] * 2, [[packed(HIDDEN, 64)]] * 2
    return NativeExperts(config=EXPERTS, router=router, gate_up=gate_up, down=down)


def check(
    library: ctypes.CDLL, of: NativeLayer, rows: int = CONFIG.vocab_size, width: int = HIDDEN
) -> None:
    table = packed(rows, HIDDEN)
    config = ONE if of.experts is None else SPARSE
    WeightCheck(library, config).check([of], norm(width), table, table)


def test_what_fits_passes(library: ctypes.CDLL) -> None:
    check(library, layer())
    check(library, replace(layer(), experts=experts()))


def cut_panels(of: NativeLayer) -> NativeLayer:
    part = of.output[0]
    return replace(of, output=[replace(part, panels=part.panels[:-1])])


def test_a_join_of_other_widths_is_refused(library: ctypes.CDLL) -> None:
    def join(product: PackedLinear, width: int = HIDDEN) -> NativeJoin:
        return NativeJoin(embedding_norm=norm(), hidden_norm=norm(width), product=product)

    table = packed(CONFIG.vocab_size, HIDDEN)
    subject = WeightCheck(library, ONE)
    subject.check([layer()], norm(), table, table, join(packed(HIDDEN, 2 * HIDDEN)))
    with pytest.raises(UnfitWeightsError, match="the join is 256 x 256; 256 x 512"):
        subject.check([layer()], norm(), table, table, join(packed(HIDDEN, HIDDEN)))
    with pytest.raises(UnfitWeightsError, match=r"hidden norm is \(255,\); \(256,\)"):
        subject.check([layer()], norm(), table, table, join(packed(HIDDEN, 2 * HIDDEN), 255))


UNFIT: list[tuple[Change, str]] = [
    (lambda of: replace(of, qkv=of.qkv[:1]), "layer 0: qkv has 1 parts with 256 outputs; 512"),
    (lambda of: replace(of, qkv=[packed(512, 224)]), "qkv is 512 x 224; 512 x 256"),
    (lambda of: replace(of, output=[packed(192, HIDDEN)]), "output has 1 parts with 192"),
    (lambda of: replace(of, gate_up=[packed(INTERMEDIATE, HIDDEN)]), "gate_up has 1 parts"),
    (lambda of: replace(of, down=[packed(HIDDEN, 480)]), "down is 256 x 480; 256 x 512"),
    (lambda of: replace(of, down=()), "down has 0 parts"),
    (lambda of: replace(of, input_norm=norm(255)), r"input norm is \(255,\); \(256,\)"),
    (lambda of: replace(of, query_norm=torch.ones(63)), r"query_norm is \(63,\); \(64,\)"),
    (
        lambda of: replace(of, angles=Angles(torch.zeros(128, 40), torch.zeros(128, 40))),
        r"cosines is \(128, 40\); \(128, 32\)",
    ),
    (
        lambda of: replace(of, angles=Angles(torch.zeros(128, 32), torch.zeros(64, 32))),
        r"sines is \(64, 32\); \(128, 32\)",
    ),
    (
        lambda of: replace(of, output=[replace(of.output[0], bias=torch.zeros(255))]),
        r"output: bias is \(255,\)",
    ),
    (cut_panels, "output has [0-9]+ bytes; [0-9]+ are read"),
]


@each_case(("change", "words"), UNFIT)
def test_a_part_that_is_too_small_is_named(
    change: Change, words: str, library: ctypes.CDLL
) -> None:
    with pytest.raises(UnfitWeightsError, match=words):
        check(library, change(layer()))


UNFIT_EXPERTS: list[tuple[Callable[[NativeExperts], NativeExperts], str]] = [
    (lambda of: replace(of, down=of.down[:1]), "1 experts for 2"),
    (
        lambda of: replace(of, router=pack(DenseWeight(weight=torch.zeros(3, HIDDEN)))),
        "router is 3 x 256; 2 x 256",
    ),
    (lambda of: replace(of, router=packed(2, HIDDEN)), "the router is of Q8"),
    (lambda of: replace(of, choice_bias=torch.zeros(1)), r"choice_bias is \(1,\)"),
    (
        lambda of: replace(of, down=[of.down[0], [packed(HIDDEN, 32)]]),
        "down of expert 1 is 256 x 32; 256 x 64",
    ),
    (
        lambda of: replace(of, gate_up=[of.gate_up[0], [packed(128, HIDDEN, Format.Q4)]]),
        "several formats",
    ),
]


@each_case(("change", "words"), UNFIT_EXPERTS)
def test_an_expert_that_is_too_small_is_named(
    change: Callable[[NativeExperts], NativeExperts], words: str, library: ctypes.CDLL
) -> None:
    with pytest.raises(UnfitWeightsError, match=words):
        check(library, replace(layer(), experts=change(experts())))


def test_tables_and_the_last_norm_are_checked(library: ctypes.CDLL) -> None:
    with pytest.raises(UnfitWeightsError, match="the embedding has 49 rows; 50 are read"):
        check(library, layer(), rows=49)
    with pytest.raises(UnfitWeightsError, match=r"the final norm: final norm is \(255,\)"):
        check(library, layer(), width=255)


@each_case("format", list(Format))
def test_every_format_is_packed_into_as_many_bytes_as_are_read(
    format: Format, library: ctypes.CDLL
) -> None:
    weight = torch.zeros(40, 256)
    part = pack(DenseWeight(weight=weight)) if format is Format.F32 else packed(40, 256, format)
    config = replace(ONE, intermediate_size=256)
    table = packed(CONFIG.vocab_size, HIDDEN)
    of = replace(layer(), gate_up=[packed(512, HIDDEN)], down=[part, packed(HIDDEN - 40, 256)])
    WeightCheck(library, config).check([of], norm(), table, table)
