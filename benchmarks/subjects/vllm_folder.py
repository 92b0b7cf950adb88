"""vLLM on a folder of dense weights, on a card. Runs in an interpreter that has vLLM for it, so
this module imports only what needs none of our packages."""

from __future__ import annotations

from benchmarks.subjects.vllm_cpu import VllmEngine

LIBRARIES = ("vllm",)


def open_subject(folder: str, device: str, kv_bytes: str, sequence_tokens: str) -> VllmEngine:
    """``kv_bytes`` of keys and values: its share of the card is for the other subjects too."""
    import torch

    torch.cuda.set_device(torch.device(device))
    return VllmEngine(
        folder,
        f"on {torch.cuda.get_device_name(device)}",
        kv_cache_memory_bytes=int(kv_bytes),
        max_model_len=int(sequence_tokens),
        # Beside others on the card: it only checks that so much is free when it starts.
        gpu_memory_utilization=0.1,
    )
