"""How many multiprocessors a card has."""

from __future__ import annotations

import torch


def processor_count(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
