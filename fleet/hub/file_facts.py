"""Facts of a model from its files, before it was ever loaded, where they are on this host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fleet.catalogue import CatalogueEntry
from fleet.errors import PlanUnavailableError
from fleet.hub.layer_costs import described_files
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.hub_sources import is_of_hub
from inference.protocol.load_errors import LoadError

ANY_SIZE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Unknown texts are empty, and unknown numbers ``None``."""

    architecture: str = ""
    num_parameters: int | None = None
    context_tokens: int | None = None


NO_FACTS = FileFacts()


def file_facts(entry: CatalogueEntry) -> FileFacts:
    """Reads a GGUF's header, or config.json. Asks no hub. Blocks."""
    if is_of_hub(entry.source):
        return NO_FACTS
    try:
        with described_files(entry.load_spec(job_id="", neuron=""), ANY_SIZE) as files:
            return _of_files(files)
    # Hosts without neurons may lack gguf.
    except (LoadError, PlanUnavailableError, OSError, ModuleNotFoundError):
        return NO_FACTS


def _of_files(files: ModelFiles) -> FileFacts:
    paths = files.weights if files.is_gguf else (files.directory / "config.json",)
    changed_ns = tuple(path.stat().st_mtime_ns for path in paths)
    return _read(tuple(paths), changed_ns, files.is_gguf)


@lru_cache(maxsize=64)
def _read(paths: Sequence[Path], _changed_ns: Sequence[int], is_gguf: bool) -> FileFacts:
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
