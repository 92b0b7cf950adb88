"""The tokenizer directory of a model: its own, or one that is written once into the cache, as
<cache>/tokenizers/<hash of its files or metadata>.

Where a GGUF's rule that splits text is not known, the tokenizer of the repository that the file was
made from is used, and where the file names none it is refused. A repository's tokenizer is taken
only where it gives every token of the file the same id: a file may name the model that it was
fine-tuned from, with a vocabulary of its own. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

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
    LoadError,
    MissingFileError,
    UnknownTokenizerError,
)
from inference.settings.storage import HUGGINGFACE

log = logging.getLogger(__name__)

SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
CONFIG_FILES = (
    *("tokenizer_config.json", "special_tokens_map.json", "merges.txt"),
    *TEMPLATE_FILES,
)


def directory_tokenizer(directory: Path, cache_dir: Path) -> Path:
    """Raises ``MissingFileError``, ``BadFileError``."""
    if (directory / "tokenizer.json").is_file():
        return directory
    sources = [directory / name for name in SLOW_TOKENIZER_FILES if (directory / name).is_file()]
    if not sources:
        raise MissingFileError(f"tokenizer.json is not in {directory}")
    configs = [directory / name for name in CONFIG_FILES if (directory / name).is_file()]
    contents = (path.name.encode() + b"\0" + path.read_bytes() for path in [*sources, *configs])
    converted = cache_dir / "tokenizers" / _fingerprint(contents)
    if not converted.is_dir():
        with _written_once(converted) as written:
            _convert(directory, written)
    return converted


@contextmanager
def _written_once(directory: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes ``directory`` by one rename once it is written."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as partial:
        written = Path(partial) / "tokenizer"
        written.mkdir()
        yield written
        try:
            written.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was quicker, with the same content
                raise


def _convert(directory: Path, written: Path) -> None:
    from transformers import AutoTokenizer  # takes seconds, and few directories need it

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, use_fast=True, local_files_only=True)
        tokenizer.save_pretrained(written)
    except (ValueError, OSError, ImportError) as error:
        raise BadFileError(f"{directory}: its tokenizer cannot be converted: {error}") from error
    if not (written / "tokenizer.json").is_file():
        raise BadFileError(f"{directory}: its tokenizer has no fast form (tokenizer.json)")
    _copy_template(directory, written)


def _copy_template(directory: Path, written: Path) -> None:
    """The conversion writes a template file that would override the directory's own."""
    own = [directory / name for name in TEMPLATE_FILES if (directory / name).is_file()]
    for name in TEMPLATE_FILES if own else ():
        (written / name).unlink(missing_ok=True)
    for path in own:
        shutil.copyfile(path, written / path.name)


def _fingerprint(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:24]


def separator_of_pairs(directory: Path) -> int | None:
    """The last token of the first text, where tokens of the second are of another type; ``None``:
    the tokenizer has no types."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    encoded = tokenizer.encode("a", "b")
    if 1 not in encoded.type_ids:
        return None
    first = encoded.type_ids.index(1)
    return int(encoded.ids[first - 1]) if first else None


CONVERTER_VERSION = b"3"
"""Part of the hash: raise it when the same metadata gives another tokenizer."""
HUB_URL = re.compile(r"^(?:https?://(?:huggingface\.co|hf\.co)/)?([\w.-]+/[\w.-]+?)/?$")
URL_KEYS = ("source.huggingface.repository", "source.repo_url", "source.url", "repo_url", "url")
UNUSED_TYPE = 5
"""The tokenizer.ggml.token_type of rows that only fill the embedding up, no token elsewhere."""
FetchTokenizer = Callable[[str], Path]
"""Repository, with its scheme if of a named source -> folder. Raises ``LoadError``."""


def tokenizer_directory(
    header: GGUFHeader,
    cache_dir: Path,
    fetch: FetchTokenizer,
    scheme: str = HUGGINGFACE,
) -> Path:
    """``scheme``: of the file's own source. Raises ``BadFileError``."""
    directory = cache_dir / "tokenizers" / _header_fingerprint(header, scheme)
    if directory.is_dir():
        return directory
    named = [*base_repositories(header.metadata), *original_of(header.path, scheme)]
    repositories = list(dict.fromkeys(named))
    try:
        tokenizer, config = convert_tokenizer(header.metadata)
        definition = tokenizer.to_str()
    except UnknownTokenizerError as error:
        definition, config = _base_tokenizer(header.metadata, fetch, error, repositories)
        config |= own_config(header.metadata)
    if "chat_template" not in config:
        template = _base_chat_template(fetch, repositories)
        if template is None and repositories:
            # Asked again at the next load: the hub may only have been out of reach.
            directory = directory.with_name(f"{directory.name}-no-template")
        elif template is not None:
            config["chat_template"] = template
    with _written_once(directory) as written:
        (written / "tokenizer.json").write_text(definition, encoding="utf-8")
        (written / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return directory


def _header_fingerprint(header: GGUFHeader, scheme: str) -> str:
    """Includes the source: what its repositories lack is not taken from another one's."""
    source = b"" if scheme == HUGGINGFACE else scheme.encode()
    with header.path.open("rb") as file:
        return _fingerprint([CONVERTER_VERSION, source, file.read(header.data_offset)])


def tokenizer_warnings(directory: Path) -> list[str]:
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


def _base_tokenizer(
    metadata: Metadata, fetch: FetchTokenizer, cause: BadFileError, repositories: Sequence[str]
) -> tuple[str, dict[str, Any]]:
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


def _base_chat_template(fetch: FetchTokenizer, repositories: Sequence[str]) -> Any:
    for repo in repositories:
        try:
            directory = fetch(repo)
        except LoadError as error:
            log.warning("no chat template from %s: %s", repo, error)
            continue
        if template := _read_config(directory).get("chat_template"):
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
    """With the template of its own file, where there is one."""
    config = read_json_if_there(directory / "tokenizer_config.json")
    template = read_json_if_there(directory / "chat_template.json").get("chat_template")
    path = directory / "chat_template.jinja"
    template = path.read_text(encoding="utf-8") if path.is_file() else template
    return {**config, "chat_template": template} if template else config
