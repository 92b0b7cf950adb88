"""A tokenizer directory for a GGUF file, written once per vocabulary.

    <cache>/tokenizers/<hash of the metadata>/ tokenizer.json, tokenizer_config.json

    metadata ─▶ convert ─▶ directory
                   └ unknown rule, or no chat template ─▶ the base repository's files

    general.source / base_model … repo_url ─▶ org/name ─▶ its tokenizer.json, its chat template

Where the rule that splits text is not known, the tokenizer of the repository that the file was made
from is used, and where the file names none it is refused. A repository's tokenizer is taken only
where it gives every token of the file the same id: a file may name the model that it was fine-tuned
from, with a vocabulary of its own. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.loading.directory_tokenizer import written_once
from inference.loading.gguf.header import GGUFHeader
from inference.loading.gguf.tokenizer import (
    WARNING,
    Metadata,
    convert_tokenizer,
    own_config,
)
from inference.loading.hub_config import read_json_if_there
from inference.loading.sources.hub_sources import REPOSITORY_PREFIX
from inference.protocol.load_errors import (
    BadFileError,
    DownloadFailedError,
    LoadError,
    UnknownTokenizerError,
)
from inference.settings.storage import HUGGINGFACE

CONVERTER_VERSION = b"3"
"""Part of the hash: raise it when the same metadata gives another tokenizer."""
log = logging.getLogger(__name__)
HUB_URL = re.compile(r"^(?:https?://(?:huggingface\.co|hf\.co)/)?([\w.-]+/[\w.-]+?)/?$")
URL_KEYS = ("source.huggingface.repository", "source.repo_url", "source.url", "repo_url", "url")
UNUSED_TYPE = 5
"""The tokenizer.ggml.token_type of rows that only fill the embedding up, no token elsewhere."""
FetchTokenizer = Callable[[str], Path]
"""Repository (of a named source with its scheme) to a folder with its tokenizer files. Raises
``LoadError``."""


def no_repository(repo: str) -> Path:
    raise DownloadFailedError(f"{repo} is not fetched here")


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
    named = [*base_repositories(header.metadata), *original_of(header.path, scheme)]
    repositories = list(dict.fromkeys(named))
    try:
        tokenizer, config = convert_tokenizer(header.metadata)
        definition = tokenizer.to_str()
    except UnknownTokenizerError as error:
        definition, config = base_tokenizer(header.metadata, fetch, error, repositories)
        config |= own_config(header.metadata)
    if "chat_template" not in config:
        template = base_chat_template(fetch, repositories)
        if template is None and repositories:
            # Asked again at the next load: the hub may only have been out of reach.
            directory = directory.with_name(f"{directory.name}-no-template")
        elif template is not None:
            config["chat_template"] = template
    with written_once(directory) as written:
        (written / "tokenizer.json").write_text(definition, encoding="utf-8")
        (written / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return directory


def _fingerprint(header: GGUFHeader, scheme: str) -> str:
    """Includes the source: what its repositories lack is not taken from another one's."""
    digest = hashlib.sha256(CONVERTER_VERSION)
    if scheme != HUGGINGFACE:
        digest.update(scheme.encode())
    with header.path.open("rb") as file:
        digest.update(file.read(header.data_offset))
    return digest.hexdigest()[:24]


def tokenizer_warnings(directory: Path) -> list[str]:
    """Sentences about the vocabulary of the file that the directory was written for."""
    config = read_json_if_there(directory / "tokenizer_config.json")
    return [config[WARNING]] if WARNING in config else []


def base_repositories(metadata: Metadata) -> list[str]:
    """``org/name``, the file's own source first, then the models that it was made from."""
    num_models = metadata.get("general.base_model.count", 0)
    count = min(num_models, len(metadata)) if isinstance(num_models, int) else 0
    keys = (*URL_KEYS, *(f"base_model.{index}.repo_url" for index in range(count)))
    urls = [metadata.get(f"general.{key}") for key in keys]
    matches = [HUB_URL.match(url.strip()) for url in urls if isinstance(url, str)]
    return list(dict.fromkeys(match[1] for match in matches if match))


def original_of(directory: Path, scheme: str = HUGGINGFACE) -> list[str]:
    """The repository that a downloaded ``…-GGUF`` repository is named after, of the same source:
    another source must neither learn the name nor answer for it."""
    for part in directory.parts:
        if part.startswith(REPOSITORY_PREFIX) and part.lower().endswith("-gguf"):
            name = part.removeprefix(REPOSITORY_PREFIX)[: -len("-gguf")].replace("--", "/")
            return [name if scheme == HUGGINGFACE else f"{scheme}:{name}"]
    return []


def base_tokenizer(
    metadata: Metadata, fetch: FetchTokenizer, cause: BadFileError, repositories: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json and the object of tokenizer_config.json, from the first repository
    whose vocabulary is the file's. Raises ``BadFileError``, which lists the repositories that were
    tried."""
    tried = []
    for repo in repositories:
        try:
            directory = fetch(repo)
            definition = (directory / "tokenizer.json").read_text(encoding="utf-8")
            _check_same_vocabulary(repo, json.loads(definition), metadata)
            return definition, _read_config(directory)
        except (LoadError, OSError, ValueError) as error:
            tried.append(str(error))
    because = "; ".join(tried) or "its metadata names no repository to take the tokenizer from"
    raise BadFileError(
        f"{cause}, and {because}; put the original model's tokenizer.json and "
        "tokenizer_config.json beside the file"
    ) from cause


def base_chat_template(fetch: FetchTokenizer, repositories: Sequence[str]) -> Any:
    """A template's text, a list of named ones, or ``None`` where none can be had."""
    for repo in repositories:
        try:
            directory = fetch(repo)
        except LoadError as error:
            log.warning("no chat template from %s: %s", repo, error)
            continue
        for config in (
            {"chat_template": _jinja(directory)},
            read_json_if_there(directory / "chat_template.json"),
            read_json_if_there(directory / "tokenizer_config.json"),
        ):
            if template := config.get("chat_template"):
                return template
    return None


def _check_same_vocabulary(repo: str, definition: Mapping[str, Any], metadata: Metadata) -> None:
    ids = _token_ids(definition)
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if kind != UNUSED_TYPE and ids.get(token) != token_id:
            raise BadFileError(
                f"{repo} has another vocabulary: the file's token {token_id} is {token!r}, which "
                f"there is {ids.get(token, 'no token')}"
            )


def _token_ids(definition: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = definition["model"]["vocab"]
    if isinstance(vocabulary, list):  # unigram: (piece, score) pairs
        vocabulary = {piece: token_id for token_id, (piece, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in definition.get("added_tokens", [])}
    return {**vocabulary, **added}


def _read_config(directory: Path) -> dict[str, Any]:
    template = _jinja(directory)
    own = {} if template is None else {"chat_template": template}
    return read_json_if_there(directory / "tokenizer_config.json") | own


def _jinja(directory: Path) -> str | None:
    path = directory / "chat_template.jinja"
    return path.read_text(encoding="utf-8") if path.is_file() else None
