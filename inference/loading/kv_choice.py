"""Which KV format a load spec means, before it is certain what will run the model."""

from __future__ import annotations

import torch

from inference.loading.devices import choose_dtype
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import kv_format_on
from inference.models.errors import UnsupportedKVError
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError


def wanted_kv_format(spec: LoadSpec) -> KVFormat | None:
    """``None``: automatic."""
    return None if spec.kv_dtype == "auto" else spec.kv_dtype


def planned_kv_format(spec: LoadSpec, device: torch.device, is_native: bool) -> KVFormat:
    """Raises ``BadSourceError`` for a format that the path or the card has not."""
    try:
        return kv_format_on(
            device, wanted_kv_format(spec), choose_dtype(spec, device), is_native=is_native
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
