"""Which KV format a load spec means, before it is certain what will run the model."""

from __future__ import annotations

import torch

from inference.loading.devices import choose_dtype
from inference.loading.errors import BadSourceError
from inference.models.errors import UnsupportedKVError
from inference.models.kv_format import KVFormat, choose_kv_format
from inference.models.native.build import automatic_kv_format
from inference.models.paged_kv import FORMAT_OF
from inference.protocol.load import LoadSpec


def wanted_kv_format(spec: LoadSpec) -> KVFormat | None:
    """``None``: automatic."""
    return None if spec.kv_dtype == "auto" else spec.kv_dtype


def foreseen_kv_format(spec: LoadSpec, device: torch.device, is_native: bool) -> KVFormat:
    """Raises ``BadSourceError`` for a format that the path has not."""
    try:
        return choose_kv_format(
            wanted_kv_format(spec),
            automatic_kv_format() if is_native else FORMAT_OF[choose_dtype(spec, device)],
            device_type=device.type,
            is_native=is_native,
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
