from __future__ import annotations

import pytest

from inference.loading.sources.files import check_shards, choose_weights, gguf_variants
from inference.protocol.load_errors import MissingFileError, QuantizationNotFoundError
from tests.cases import each_case

GB = 10**9
QUANTS = {
    "tiny-Q4_K_M.gguf": 4 * GB,
    "tiny-Q8_0.gguf": 8 * GB,
    "tiny.f16.gguf": 16 * GB,
    "mmproj-tiny-f16.gguf": 1 * GB,
    "README.md": 1,
}
SHARDS = {f"big-Q4_0-{i:05d}-of-00003.gguf": GB for i in (1, 2, 3)}


def test_quants_are_read_off_names() -> None:
    quants = [variant.quant for variant in gguf_variants(QUANTS | SHARDS | {"plain.gguf": 1})]
    assert quants == ["Q4_0", None, "Q4_K_M", "Q8_0", "F16"]


@each_case("wanted", ["Q8_0", "q8_0", "tiny-Q8_0.gguf", "tiny-Q8_0"])
def test_a_quant_is_found_by_its_name_or_its_file(wanted: str) -> None:
    assert choose_weights(QUANTS, wanted, GB) == ("tiny-Q8_0.gguf",)


@each_case(
    ("wanted", "found"),
    [
        ("q4k", "tiny-Q4_K_M.gguf"),
        ("Q4_K", "tiny-Q4_K_M.gguf"),
        ("q80", "tiny-Q8_0.gguf"),
        ("q6k", "tiny-UD-Q6_K.gguf"),
        ("ud-q6", "tiny-UD-Q6_K.gguf"),
        ("UD-Q5_K_XL", "tiny-UD-Q5_K_XL.gguf"),
    ],
)
def test_a_quant_is_found_by_the_originals_names(wanted: str, found: str) -> None:
    more = {"tiny-UD-Q6_K.gguf": GB, "tiny-UD-Q5_K_XL.gguf": GB, "tiny-Q4_K_S.gguf": GB}
    assert choose_weights(QUANTS | more, wanted, GB) == (found,)


def test_the_largest_that_fits_is_the_default() -> None:
    assert choose_weights(QUANTS, None, 10 * GB) == ("tiny-Q8_0.gguf",)
    assert choose_weights(QUANTS, None, 100 * GB) == ("tiny.f16.gguf",)


def test_when_none_fits_the_smallest_is_left_to_preflight() -> None:
    assert choose_weights(QUANTS, None, GB) == ("tiny-Q4_K_M.gguf",)


def test_safetensors_come_before_gguf() -> None:
    sizes = QUANTS | {"model.safetensors": GB, "consolidated.safetensors": GB}
    assert choose_weights(sizes, None, 100 * GB) == ("model.safetensors",)
    assert choose_weights(sizes, "Q8_0", 100 * GB) == ("tiny-Q8_0.gguf",)
    assert choose_weights(sizes, "model.safetensors", GB) == ("model.safetensors",)


def test_parts_come_together_and_in_order() -> None:
    assert choose_weights(SHARDS, "Q4_0", GB) == tuple(sorted(SHARDS))
    assert choose_weights(SHARDS, "big-Q4_0-00001-of-00003.gguf", GB) == tuple(sorted(SHARDS))


@each_case(
    ("wanted", "nearest"),
    [("Q4_K_S", "Q4_K_M"), ("Q8", "Q8_0"), ("tiny-Q8_1.gguf", r"tiny-Q8_0\.gguf")],
)
def test_a_quant_that_is_not_there_names_the_nearest(wanted: str, nearest: str) -> None:
    with pytest.raises(
        QuantizationNotFoundError, match=f"{wanted}.*the nearest is {nearest};"
    ) as no:
        choose_weights(QUANTS, wanted, GB)
    failure = no.value.failure
    assert failure.nearest == nearest.replace("\\", "")
    assert {"Q4_K_M", "Q8_0"} <= set(failure.available)


def test_two_models_of_one_quant_must_be_distinguished() -> None:
    with pytest.raises(QuantizationNotFoundError, match=r"ambiguous.*a-Q4_0\.gguf, b-Q4_0\.gguf"):
        choose_weights({"a-Q4_0.gguf": 1, "b-Q4_0.gguf": 1}, "Q4_0", GB)


def test_no_weights_at_all() -> None:
    with pytest.raises(MissingFileError, match=r"model\.safetensors"):
        choose_weights({"README.md": 1}, None, GB)


def test_a_missing_part_is_named() -> None:
    check_shards(sorted(SHARDS))
    with pytest.raises(MissingFileError, match=r"big-Q4_0-00002-of-00003\.gguf"):
        check_shards([name for name in SHARDS if "00002" not in name])
    with pytest.raises(MissingFileError, match=r"model-00001-of-00002\.safetensors"):
        check_shards(["model-00002-of-00002.safetensors"])
