"""Costs of a catalogue model's layers, from the files that describe it: the hub's by range, or
those on this disk. Downloads nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.catalogue import CatalogueEntry
from fleet.errors import PlanUnavailableError
from inference.loading.model_costs import ModelCosts
from inference.loading.sources import pypi
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.hub_sources import is_of_hub
from inference.loading.sources.sources import directory_files, parse_source, path_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.settings.storage import DATA_DIR


def entry_costs(entry: CatalogueEntry, free_bytes: int) -> ModelCosts:
    """``free_bytes``: as a load would choose among quants. Raises ``PlanUnavailableError``,
    ``HubError``."""
    spec = entry.load_spec(job_id="", neuron="")
    from inference.loading.read_costs import read_costs  # few processes need it

    try:
        with described_files(spec, free_bytes) as files:
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
def described_files(spec: LoadSpec, free_bytes: int) -> Iterator[ModelFiles]:
    """The files that describe a model. Raises ``LoadError``, ``PlanUnavailableError``,
    ``HubError``."""
    source = parse_source(spec.source)
    if is_of_hub(spec.source):
        from fleet.hub.client import HubClient  # takes a second, and few processes need it

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
