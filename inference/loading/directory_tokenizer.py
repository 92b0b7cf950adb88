"""The tokenizer of a Hugging Face directory: its own files, or a slow tokenizer converted once."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers

from inference.protocol.load_errors import BadFileError, MissingFileError

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
    converted = cache_dir / "tokenizers" / _fingerprint([*sources, *configs])
    if not converted.is_dir():
        with written_once(converted) as written:
            _convert(directory, written)
    return converted


@contextmanager
def written_once(directory: Path) -> Iterator[Path]:
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
    """The conversion writes the configuration's template as a file, which would come before the
    directory's own."""
    own = [directory / name for name in TEMPLATE_FILES if (directory / name).is_file()]
    for name in TEMPLATE_FILES if own else ():
        (written / name).unlink(missing_ok=True)
    for path in own:
        shutil.copyfile(path, written / path.name)


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
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
