"""Plans a model's stages for operators, without loading anything.

CatalogueEntry ─▶ files that describe it ─▶ ModelCosts ─▶ the plan, and what else would fit
                  in the hub, or on this disk
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.catalogue import CatalogueEntry
from fleet.errors import PlanUnavailableError
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.stages import Spread, StageDevice, StagePlan, StageRefusal, plan_stages
from fleet.placement.stages.devices import stage_devices
from fleet.placement.stages.planning import KV_TOKENS
from inference.loading.costs.model_costs import ModelCosts
from inference.loading.sources import pypi
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.sources import directory_files, parse_source, path_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.settings.storage import DATA_DIR

MIB = 1024**2
FEWER_TOKENS = (4096, 256)
"""Plans with room for so many tokens follow where none has room for ``KV_TOKENS``."""
NOT_LOADED_YET = (
    "More than one stage, and experts apart in host memory, can be planned and not loaded yet: "
    "loads go to one device"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    words: str
    plan: StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    costs: ModelCosts
    kv_tokens: int
    """Each plan has room for the keys and values of at least so many tokens."""
    plan: StagePlan | None
    refusal: StageRefusal | None
    alternatives: tuple[Alternative, ...]


def stage_plan(entry: CatalogueEntry, snapshot: FleetSnapshot) -> PlannedModel:
    """Reads the model's config or file headers; the hub's by range. Raises
    ``PlanUnavailableError``, ``HubError``."""
    if entry.base is not None:
        raise PlanUnavailableError(f"{entry.name} is an adapter: plan its base, {entry.base}")
    if entry.tensor_parallel > 1:
        raise PlanUnavailableError(
            f"{entry.name} has {entry.tensor_parallel} ranks (tensor_parallel), which lie on as "
            "many equal cards of one host: plans are of stages"
        )
    devices = _devices(entry, snapshot)
    spec = entry.load_spec(job_id="", neuron="")
    free_bytes = max((one.free_bytes for one in devices), default=0)
    from inference.loading.costs.read_costs import read_costs  # few processes need it

    try:
        with _described(spec, free_bytes) as files:
            costs = read_costs(files, spec)
    except LoadError as error:
        raise PlanUnavailableError(f"{entry.name} cannot be planned: {error}") from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "gguf":
            raise
        raise PlanUnavailableError(
            "this host has no package gguf, which reads the headers of GGUF files: ask a host with "
            "a neuron, or install it (pip install gguf)"
        ) from None
    return _planned(costs, devices, _devices(entry, snapshot, is_empty=True), _tokens(spec, costs))


def _devices(
    entry: CatalogueEntry, snapshot: FleetSnapshot, *, is_empty: bool = False
) -> list[StageDevice]:
    """The devices that the model may be on."""
    least_bytes = (entry.min_device_vram_mb or 0) * MIB
    large = {
        (neuron.name, info.kind, info.index)
        for neuron in snapshot.neurons
        for info in neuron.devices
        if info.kind == "cpu" or info.total_memory_bytes >= least_bytes
    }
    names = {
        (neuron, "cpu" if kind == "cpu" else f"{kind}:{index}") for neuron, kind, index in large
    }
    return [
        one
        for one in stage_devices(snapshot, only=entry.pinned_on, is_empty=is_empty)
        if entry.device in ("auto", one.kind) and (one.neuron, one.name) in names
    ]


@contextmanager
def _described(spec: LoadSpec, free_bytes: int) -> Iterator[ModelFiles]:
    """Raises ``LoadError``, ``HubError``, ``PlanUnavailableError``."""
    source = parse_source(spec.source)
    if source.scheme == "huggingface":
        from fleet.hub.client import HubClient  # takes a second, and few processes need it

        with tempfile.TemporaryDirectory() as scratch:
            yield HubClient().described(
                source.location, spec.revision, spec.file, free_bytes, Path(scratch)
            )
    elif source.scheme == "path":
        yield path_files(Path(source.location).expanduser(), spec.file, free_bytes)
    else:
        requirement = source.location
        if spec.revision is not None:
            requirement = f"{requirement}=={spec.revision}"
        cache_dir = (DATA_DIR.read(os.environ) or Path("var")) / "models"
        package = pypi.package_directory(requirement, spec.sha256, cache_dir)
        if not package.is_dir():
            raise PlanUnavailableError(
                f"{spec.source} is not downloaded on this host, and a wheel has to be there to be "
                "read: models pull downloads it"
            )
        yield directory_files(pypi.model_directory(package), spec.file, free_bytes)


def _tokens(spec: LoadSpec, costs: ModelCosts) -> tuple[int, ...]:
    """Of keys and values, the most wanted first."""
    if spec.kv_memory_bytes is not None:
        token_bytes = sum(layer.kv_token_bytes.cuda for layer in costs.layers)
        return (spec.kv_memory_bytes // max(1, token_bytes),)
    return (KV_TOKENS, *FEWER_TOKENS)


def _planned(
    costs: ModelCosts,
    devices: list[StageDevice],
    empty: list[StageDevice],
    tokens: tuple[int, ...],
) -> PlannedModel:
    """One host is the first choice, several the next."""
    refusal: StageRefusal | None = None
    for kv_tokens in tokens:
        for spread in ("host", "fleet"):
            plan = plan_stages(costs, devices, spread=spread, kv_tokens=kv_tokens)
            if isinstance(plan, StagePlan):
                found = tuple(_alternatives(costs, devices, empty, kv_tokens, plan))
                return PlannedModel(
                    costs=costs, kv_tokens=kv_tokens, plan=plan, refusal=None, alternatives=found
                )
            refusal = plan
    found = tuple(_alternatives(costs, devices, empty, tokens[-1], None))
    return PlannedModel(
        costs=costs, kv_tokens=tokens[-1], plan=None, refusal=refusal, alternatives=found
    )


def _alternatives(
    costs: ModelCosts,
    devices: list[StageDevice],
    empty: list[StageDevice],
    kv_tokens: int,
    chosen: StagePlan | None,
) -> Iterator[Alternative]:
    """Other plans, each once."""
    known = {_where(chosen)} if chosen else set()
    processors = [one for one in devices if one.kind == "cpu"]
    options: list[tuple[str, list[StageDevice], Spread]] = [
        ("on one device", devices, "device"),
        ("on one host", devices, "host"),
        ("over all hosts", devices, "fleet"),
        ("on processors alone", processors, "fleet"),
        ("on one host, were nothing loaded", empty, "host"),
        ("over all hosts, were nothing loaded", empty, "fleet"),
    ]
    for words, among, spread in options:
        plan = plan_stages(costs, among, spread=spread, kv_tokens=kv_tokens)
        if isinstance(plan, StagePlan) and _where(plan) not in known:
            known.add(_where(plan))
            yield Alternative(words=words, plan=plan)


def _where(plan: StagePlan) -> tuple[tuple[str, str, int, int], ...]:
    return tuple(
        (stage.neuron, stage.device, stage.num_layers, stage.num_apart) for stage in plan.stages
    )
