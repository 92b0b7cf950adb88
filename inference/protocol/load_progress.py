"""Progress and failures of loads, and the costs of the layers of a model that did not fit:
``inference.loading.model_costs`` converts plans' costs."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

MAX_LAYERS = 4096
MAX_KINDS = 256


class KindBytes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of one thing on either kind of device: formats are packed differently there."""

    cpu: int = 0
    cuda: int = 0

    def on(self, kind: Literal["cpu", "cuda"]) -> int:
        return self.cpu if kind == "cpu" else self.cuda

    def __add__(self, other: KindBytes) -> KindBytes:
        return KindBytes(self.cpu + other.cpu, self.cuda + other.cuda)


class LayerCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer. Routed experts are counted apart from the rest of its weights."""

    weight_bytes: KindBytes
    expert_bytes: KindBytes = KindBytes()
    num_weights: int = 0
    num_expert_weights: int = 0
    kv_token_bytes: KindBytes = KindBytes()
    state_bytes: int = 0


class OuterCosts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The costs of a model beside those of its layers."""

    outer_bytes: KindBytes
    """Table of tokens, output head, last norm and tower: the first stage has them."""
    head_bytes: KindBytes
    """Bytes of that which each step reads: the head, or the table that it is tied to."""
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    """Share of the routed experts that one row goes through."""
    step_bytes: KindBytes = KindBytes()
    context_tokens: int = 0


class PackedCosts(OuterCosts, frozen=True, kw_only=True, omit_defaults=True):
    """A ``inference.loading.model_costs.ModelCosts`` as it travels and is stored."""

    kinds: list[LayerCost]
    layers: list[int]
    """Each layer's index in ``kinds``."""


class LoadStage(StrEnum):
    QUEUED = "queued"
    """Accepted; other loads of this neuron come first; ``detail`` names them."""
    STARTING = "starting"
    DOWNLOADING = "downloading"
    PREFLIGHT = "preflight"
    WEIGHTS = "weights"
    WARMUP = "warmup"
    WAKING = "waking"
    """Its weights are copied from the host's memory to its device."""
    DONE = "done"


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``done`` and ``total`` in ``unit``; ``total`` is 0 while unknown."""

    stage: LoadStage
    done: int = 0
    total: int = 0
    unit: Literal["bytes", "tensors", "steps"] = "bytes"
    detail: str = ""


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    """unknown_architecture, missing_file, quantization_not_found, does_not_fit, exceeds_device,
    no_device, lost_its_room, disk_full, hash_mismatch, repo_fetch_failed, download_failed,
    load_stalled, stage_unreachable, bad_source, bad_setting, bad_file,
    engine_crashed, device_fault, engine_hung"""
    message: str
    needed_bytes: int | None = None
    """Free bytes needed on each of its devices by a load that did not fit, as far as known."""
    available: list[str] = []
    """The source's quants or files, in place of a missing one."""
    nearest: str | None = None
    costs: PackedCosts | None = None

    @property
    def suggestion(self) -> str:
        if self.nearest is not None:
            return f"Use {self.nearest}."
        return SUGGESTIONS.get(self.code, "")

    @property
    def is_permanent(self) -> bool:
        """The same load fails again on the same neuron until the operator changes the model's
        entry, its files or the host."""
        return self.code in PERMANENT_FAILURES


SUGGESTIONS = {
    "repo_fetch_failed": "Check the repository's name and revision, and HF_TOKEN on the neuron's "
    "host.",
    "does_not_fit": "Unload another model, or load a smaller quant.",
    "exceeds_device": "Load a smaller quant, or add a host with a larger device.",
    "disk_full": "Delete cached models that nobody uses.",
    "hash_mismatch": "Correct sha256 in the model's entry, or its source.",
}
PERMANENT_FAILURES = frozenset(
    {
        "unknown_architecture",
        "missing_file",
        "quantization_not_found",
        "exceeds_device",
        "hash_mismatch",
        "bad_source",
        "bad_setting",
        "bad_file",
        "repo_fetch_failed",
    }
)
TOO_LARGE = frozenset({"does_not_fit", "exceeds_device"})


LOADED = LoadProgress(stage=LoadStage.DONE, done=1, total=1, unit="steps")
