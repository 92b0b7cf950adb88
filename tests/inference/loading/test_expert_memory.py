"""What a load plans for experts: packed where the card has the kernel, dense elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.loading import loader
from inference.loading.loader import open_model
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import DoesNotFitError
from tests.inference.loading.conftest import save_directory

NUM_EXPERTS, INNER, HIDDEN, NUM_LAYERS = 4, 32, 64, 2
NUM_WEIGHTS = NUM_LAYERS * NUM_EXPERTS * 3 * INNER * HIDDEN


def required_bytes(
    directory: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    **changes: object,
) -> int:
    """What a card of this capability must have for it, by the refusal of one that has nothing."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(loader, "use_device", lambda device: None)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 0)
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{directory}",
        devices=["cuda:0"],
        **({"dtype": "bfloat16", "quantization": "q4"} | changes),
    )
    with pytest.raises(DoesNotFitError) as refused:
        open_model(spec, cache_dir, lambda _: None)
    assert refused.value.needed_bytes is not None
    return refused.value.needed_bytes


def test_a_card_with_the_kernel_keeps_them_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_directory(
        tmp_path / "mixture",
        "qwen3_moe",
        hidden_size=HIDDEN,
        num_hidden_layers=NUM_LAYERS,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=INNER,
    )

    def needed(capability: tuple[int, int], **changes: object) -> int:
        return required_bytes(directory, tmp_path, monkeypatch, capability, **changes)

    assert needed((7, 5)) - needed((8, 0)) == NUM_WEIGHTS * (2 - 0.625)
    more_bits = needed((8, 0), quantization="q8") - needed((8, 0))
    of_others = needed((7, 5), quantization="q8") - needed((7, 5))
    assert more_bits - of_others == NUM_WEIGHTS * (1.0625 - 0.625)
