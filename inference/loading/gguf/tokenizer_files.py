"""A tokenizer directory for a GGUF file, written once per vocabulary.

    <cache>/tokenizers/<hash of the metadata>/ tokenizer.json, tokenizer_config.json

    metadata ─▶ convert ─▶ directory
                   └ unknown rule, or no chat template ─▶ the base repository's files (base_repo.py)

Where the rule that splits text is not known, the tokenizer of the repository that the file was made
from is used, and where the file names none it is refused. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.loading.gguf.header import GGUFHeader
from inference.loading.gguf.tokenizer import (
    WARNING,
    Metadata,
    convert_tokenizer,
    own_config,
)
from inference.loading.sources.base_repo import (
    FetchTokenizer,
    base_chat_template,
    base_repositories,
    base_tokenizer,
    no_repository,
    original_of,
)
from inference.protocol.load_errors import UnknownTokenizerError
from inference.settings.storage import HUGGINGFACE

CONVERTER_VERSION = b"3"
"""Part of the hash: raise it when the same metadata gives another tokenizer."""


def tokenizer_directory(
    header: GGUFHeader,
    cache_dir: Path,
    fetch: FetchTokenizer = no_repository,
    scheme: str = HUGGINGFACE,
) -> Path:
    """``fetch`` brings a repository's tokenizer files, ``scheme`` is of the file's own source.
    Raises ``BadFileError``."""
    directory = cache_dir / "tokenizers" / _fingerprint(header, scheme)
    if directory.is_dir():
        return directory
    also = original_of(header.path, scheme)
    definition, config = _tokenizer_of(header.metadata, fetch, also)
    if "chat_template" not in config:
        template = base_chat_template(header.metadata, fetch, also)
        if template is None and (base_repositories(header.metadata) or also):
            # Asked again at the next load: the hub may only have been out of reach.
            directory = directory.with_name(f"{directory.name}-no-template")
        elif template is not None:
            config["chat_template"] = template
    _write(directory, definition, config)
    return directory


def _tokenizer_of(
    metadata: Metadata, fetch: FetchTokenizer, also: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, out of the metadata or the base repository."""
    try:
        tokenizer, config = convert_tokenizer(metadata)
        return tokenizer.to_str(), config
    except UnknownTokenizerError as error:
        definition, base_config = base_tokenizer(metadata, fetch, error, also)
        return definition, {**base_config, **own_config(metadata)}


def _write(directory: Path, definition: str, config: Mapping[str, Any]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as partial:
        written = Path(partial) / "tokenizer"
        written.mkdir()
        (written / "tokenizer.json").write_text(definition, encoding="utf-8")
        (written / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
        _publish(written, directory)


def _fingerprint(header: GGUFHeader, scheme: str) -> str:
    """A source's own: what its repositories lack is not taken from another one's."""
    digest = hashlib.sha256(CONVERTER_VERSION)
    if scheme != HUGGINGFACE:
        digest.update(scheme.encode())
    with header.path.open("rb") as file:
        digest.update(file.read(header.data_offset))
    return digest.hexdigest()[:24]


def _publish(written: Path, directory: Path) -> None:
    try:
        written.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process was quicker, with the same content
            raise


def tokenizer_warnings(directory: Path) -> list[str]:
    """Sentences about the vocabulary of the file that the directory was written for."""
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return [config[WARNING]] if isinstance(config, dict) and WARNING in config else []
