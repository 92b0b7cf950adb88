"""What keys and values are stored as on a device that is at hand."""

from __future__ import annotations

import torch

from inference.models.cache.kv_format import KVFormat, choose_kv_format
from inference.models.cache.paged_kv import FORMAT_OF
from inference.models.native.build import automatic_kv_format


def kv_format_on(
    device: torch.device, wanted: KVFormat | None, dtype: torch.dtype, *, is_native: bool
) -> KVFormat:
    """``wanted``, or where that is ``None`` what suits the path; ``dtype`` is the activations'.
    Raises ``UnsupportedKVError``."""
    # Only where an answer depends on it, so that a load can be planned where the card is not.
    asks_card = wanted == "fp8" and device.type == "cuda"
    return choose_kv_format(
        wanted,
        automatic_kv_format() if is_native else FORMAT_OF[dtype],
        device_type=device.type,
        is_native=is_native,
        capability=torch.cuda.get_device_capability(device) if asks_card else None,
    )
