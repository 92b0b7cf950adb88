"""Models that are not loaded yet: a hub repository's offers, the hosts where each fits, and what
files tell of costs and limits. No torch: architectures are judged by config files. Import
``fleet.hub_client`` where it is used: huggingface_hub is slow to import."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from fleet.catalogue import CatalogueEntry, SettingValue
from fleet.catalogue.entry import expected_vram_mb
from fleet.errors import PlanUnavailableError
from fleet.live.snapshot import FleetSnapshot
from fleet.models_toml_values import name_of_id
from fleet.placement import Catalogue, Decision, Load, Reject, Wait, place
from fleet.placement.division import is_large_enough
from fleet.placement.needs import Needs
from fleet.placement.returning import unavailable_hosts
from inference.loading.model_costs import ModelCosts
from inference.loading.sources import pypi
from inference.loading.sources.files import (
    SAFETENSORS_NAME,
    GGUFVariant,
    ModelFiles,
    check_shards,
    gguf_variants,
    projector_beside,
)
from inference.loading.sources.hub_sources import is_of_hub
from inference.loading.sources.sources import directory_files, parse_source, path_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.settings.storage import DATA_DIR, HUGGINGFACE

T = TypeVar("T")
TOO_LARGE = "larger than any of its devices"
ANY_SIZE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    name: str
    scheme: str = HUGGINGFACE
    commit: str
    sizes: Mapping[str, int]
    is_gated: bool = False
    gguf_architecture: str | None = None
    """In the headers of its GGUF files, by the hub; ``None``: not reported."""
    safetensors_problem: str | None = None
    access_problem: str | None = None

    @property
    def source(self) -> str:
        return f"{self.scheme}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """``file``: a quant, a file name, or ``None`` for the safetensors."""

    file: str | None
    label: str
    model_name: str
    names: tuple[str, ...]
    """The weight files, then the ``projector``."""
    num_bytes: int
    problem: str | None
    """Why this build does not run it."""
    access_problem: str | None = None
    """Why the hub denies access: it is unknown whether this build runs it."""
    projector: str | None = None
    """The mmproj file of a GGUF, for images."""

    @property
    def vram_mb(self) -> int:
        return expected_vram_mb(self.num_bytes)

    def settings(self, repository: HubRepository, revision: str | None) -> dict[str, SettingValue]:
        return {
            "source": repository.source,
            "file": self.file,
            "revision": revision,
            "vram_mb": self.vram_mb,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronFit:
    neuron: str
    fits: bool
    """Now, or after evictions."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    offer: Offer
    fits: tuple[NeuronFit, ...]


def offers_of(repository: HubRepository) -> tuple[Offer, ...]:
    """The safetensors, then GGUFs by their size. Empty: no model that can be read."""
    dense = [name for name in repository.sizes if SAFETENSORS_NAME.fullmatch(name)]
    offers = [_dense_offer(repository, sorted(dense))] if dense else []
    variants = gguf_variants(repository.sizes)
    quants = [variant.quant for variant in variants]
    for variant in sorted(variants, key=lambda variant: (variant.num_bytes, variant.stem)):
        is_unique = variant.quant is not None and quants.count(variant.quant) == 1
        offers.append(_gguf_offer(repository, variant, is_unique))
    return tuple(offers)


def choices_of(
    repository: HubRepository, snapshot: FleetSnapshot, catalogue: Catalogue | None = None
) -> tuple[Choice, ...]:
    return tuple(
        Choice(offer=offer, fits=fits(offer, snapshot, catalogue))
        for offer in offers_of(repository)
    )


def fits(
    offer: Offer, snapshot: FleetSnapshot, catalogue: Catalogue | None = None
) -> tuple[NeuronFit, ...]:
    """Placement's decision if each neuron were alone; offline hosts by their devices' size."""
    entry = CatalogueEntry(name="", source="", vram_mb=offer.vram_mb)
    found = []
    for neuron in snapshot.neurons:
        alone = FleetSnapshot(neurons=(neuron,))
        found.append(_fit(neuron.name, place(entry, alone, catalogue=catalogue)))
    for host in unavailable_hosts(snapshot):
        if snapshot.neuron(host.name) is None:
            is_large = is_large_enough(Needs(entry), host.name, host.devices)
            words = f"large enough, but it {host.how_long}" if is_large else TOO_LARGE
            found.append(NeuronFit(neuron=host.name, fits=False, words=words))
    return tuple(sorted(found, key=lambda one: one.neuron))


def _dense_offer(repository: HubRepository, names: list[str]) -> Offer:
    return Offer(
        file=None,
        label="safetensors",
        model_name=name_of_id(repository.name),
        names=tuple(names),
        num_bytes=sum(repository.sizes[name] for name in names),
        problem=repository.safetensors_problem or problem_of(check_shards, names),
        access_problem=repository.access_problem,
    )


def _gguf_offer(repository: HubRepository, variant: GGUFVariant, is_unique: bool) -> Offer:
    # The families' table takes a seventh of a second to import, in every process of the services.
    from inference.models.families.registry import check_gguf_architecture, may_read_images

    file = variant.quant if is_unique and variant.quant else variant.names[0]
    base = name_of_id(repository.name).removesuffix("-gguf")
    architecture = repository.gguf_architecture
    reads_images = may_read_images(architecture)
    projector = projector_beside(repository.sizes, variant.names) if reads_images else None
    names = variant.names if projector is None else (*variant.names, projector)
    problem = architecture and problem_of(check_gguf_architecture, architecture)
    return Offer(
        file=file,
        label=file,
        model_name=f"{base}-{file.lower()}" if is_unique else name_of_id(variant.stem),
        names=names,
        num_bytes=sum(repository.sizes[name] for name in names),
        projector=projector,
        problem=problem or problem_of(check_shards, variant.names),
    )


def problem_of(check: Callable[[T], object], value: T) -> str | None:
    """Returns why a load would refuse it."""
    try:
        check(value)
    except LoadError as error:
        return str(error)
    return None


def _fit(neuron: str, decision: Decision) -> NeuronFit:
    match decision:
        case Load(evictions=()):
            fits, words = True, "fits"
        case Load():
            leaving = ", ".join(model for _, model in decision.evictions)
            fits, words = True, f"fits when {leaving} leaves"
        case Wait():
            fits, words = True, "fits once others have had their turn"
        case Reject(code="exceeds_device"):
            fits, words = False, TOO_LARGE
        case Reject(code="not_enough_memory"):
            fits, words = False, "no room now"
        case _:
            fits, words = False, "takes no loads now"
    return NeuronFit(neuron=neuron, fits=fits, words=words)


def entry_costs(entry: CatalogueEntry, free_bytes: int) -> ModelCosts:
    """Reads the files that describe it: the hub's by range, or those on this disk. ``free_bytes``:
    as a load would choose among quants. Raises ``PlanUnavailableError``, ``HubError``."""
    spec = entry.load_spec(job_id="", neuron="")
    from inference.loading.read_costs import read_costs  # few processes need it

    try:
        with _described_files(spec, free_bytes) as files:
            return read_costs(files, spec)
    except LoadError as error:
        raise PlanUnavailableError(f"{entry.name} cannot be planned: {error}") from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "gguf":
            raise
        raise PlanUnavailableError(
            "this host has no package gguf, which reads the headers of GGUF files: ask a host with "
            "a neuron, or install it (pip install gguf)"
        ) from None


@contextmanager
def _described_files(spec: LoadSpec, free_bytes: int) -> Iterator[ModelFiles]:
    source = parse_source(spec.source)
    if is_of_hub(spec.source):
        from fleet.hub_client import HubClient  # takes a second, and few processes need it

        with tempfile.TemporaryDirectory() as scratch:
            yield HubClient(source.scheme).described(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    architecture: str = ""
    num_parameters: int | None = None
    context_tokens: int | None = None


NO_FACTS = FileFacts()


def file_facts(entry: CatalogueEntry) -> FileFacts:
    """Reads a GGUF's header or config.json on this host; asks no hub. Blocks."""
    if is_of_hub(entry.source):
        return NO_FACTS
    try:
        with _described_files(entry.load_spec(job_id="", neuron=""), ANY_SIZE) as files:
            return _facts_of(files)
    # Hosts without neurons may lack gguf.
    except (LoadError, PlanUnavailableError, OSError, ModuleNotFoundError):
        return NO_FACTS


def _facts_of(files: ModelFiles) -> FileFacts:
    paths = files.weights if files.is_gguf else (files.directory / "config.json",)
    changed_ns = tuple(path.stat().st_mtime_ns for path in paths)
    return _read_facts(tuple(paths), changed_ns, files.is_gguf)


@lru_cache(maxsize=64)
def _read_facts(paths: Sequence[Path], _changed_ns: Sequence[int], is_gguf: bool) -> FileFacts:
    if not is_gguf:
        from inference.loading.hub_config import read_json  # few processes need it

        config = read_json(paths[0])
        text = config.get("text_config")
        text = text if isinstance(text, dict) else config
        return FileFacts(
            architecture=_text(config.get("model_type")),
            context_tokens=_number(text.get("max_position_embeddings")),
        )
    from inference.loading.gguf.header import read_headers

    header = read_headers(paths)
    architecture = _text(header.metadata.get("general.architecture"))
    return FileFacts(
        architecture=architecture,
        num_parameters=sum(one.num_elements for one in header.tensors.values()),
        context_tokens=_number(header.metadata.get(f"{architecture}.context_length")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
