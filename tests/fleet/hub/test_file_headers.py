"""Headers of GGUF files in the hub, read by range: a plan is made from them without weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from fleet.hub import file_headers
from fleet.hub.client import HubClient
from inference.loading.costs.read_costs import read_costs
from inference.loading.sources.files import ModelFiles
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from tests.inference.loading.range_hub import RangeHub, running_range_hub

SPEC = LoadSpec(job_id="", model="m", source="huggingface:org/tiny")
NAME = "tiny-F32.gguf"


def divisors() -> np.ndarray:
    """Returns the divisors of Llama 3's rule for 8 frequencies and a factor of 32; zeros would be
    refused."""
    wavelengths = 2 * np.pi * 10000 ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its divisors of angles lie behind 4 MB of weights."""
    path = tmp_path_factory.mktemp("gguf") / NAME
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 2,
        "context_length": 131072,
        "attention.head_count": 4,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((16384, 64), np.float32))
    writer.add_tensor("blk.1.ffn_up.weight", np.zeros((96, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", divisors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def described(hub: RangeHub, scratch: Path) -> ModelFiles:
    return HubClient(endpoint=hub.url).described("org/tiny", None, None, 10**9, scratch)


def test_a_header_is_read_in_parts_as_the_whole_file_is(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_headers, "FIRST_BYTES", 64)
    with running_range_hub({NAME: whole.read_bytes()}) as hub:
        files = described(hub, tmp_path)
        fetched = [wanted.removeprefix("bytes=").split("-") for _, wanted in hub.ranges]
    assert len(fetched) > 2
    assert sum(int(last) + 1 - int(first) for first, last in fetched) < 10_000
    assert fetched[0] == ["0", "63"]
    costs = read_costs(files, SPEC)
    assert costs == read_costs(ModelFiles(directory=whole.parent, weights=(whole,)), SPEC)
    assert [layer.num_weights for layer in costs.layers] == [0, 96 * 64]
    assert costs.num_head_weights == 16384 * 64


def test_a_hub_without_ranges_is_not_read_to_the_end(whole: Path, tmp_path: Path) -> None:
    with running_range_hub({NAME: whole.read_bytes()}) as hub:
        hub.serves_ranges = False
        assert read_costs(described(hub, tmp_path), SPEC).context_tokens == 131072


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    with running_range_hub({NAME: b"GIF89a" * 100}) as hub, pytest.raises(BadFileError):
        described(hub, tmp_path)
