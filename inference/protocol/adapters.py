"""LoRA adapters of a model: how a request names one, and what an engine reports of its own."""

from __future__ import annotations

import msgspec

DEFAULT_ADAPTER_SLOTS = 8
"""How many may be loaded beside a model at once."""


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything an engine needs to load an adapter. Two that differ in anything are two."""

    name: str
    """The catalogue name: what clients ask for."""
    source: str
    """``huggingface:org/name`` or ``path:/absolute/path`` of a directory."""
    revision: str | None = None
    sha256: str | None = None
    """The digest of adapter_model.safetensors; the adapter is refused when it differs."""
