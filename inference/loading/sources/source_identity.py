"""Which files a source names now, as one text: another text means that its files have changed.

path:         names, sizes and times of change of what lies there
a hub's:      the commit that the revision means, asked of the hub
pypi:         unknown: a wheel that was published never changes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inference.loading.sources.disk import files_under
from inference.loading.sources.hub_sources import HubSource, hub_source
from inference.loading.sources.sources import Source, parse_source
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import BadSourceError


def local_identity(spec: LoadSpec) -> str | None:
    """Returns the identity of the files on this disk, those of its draft model too; ``None``: it
    has none here."""
    found = [
        _files_identity(Path(source.location).expanduser())
        for one in (spec, draft_spec(spec))
        if one is not None and (source := _source(one)) is not None and source.scheme == "path"
    ]
    return "\n".join(found) if found else None


def hub_identity(spec: LoadSpec) -> str | None:
    """The identity of a hub source. Blocks while it asks the hub. ``None``: another kind of source,
    or the hub does not report it."""
    found = [
        _commit(hub, source.location, one.revision)
        for one in (spec, draft_spec(spec))
        if one is not None
        and (source := _source(one)) is not None
        and (hub := hub_source(source.scheme)) is not None
    ]
    known = [commit for commit in found if commit is not None]
    return "\n".join(known) if known and len(known) == len(found) else None


def weights_identity(paths: Sequence[Path]) -> str | None:
    """Returns the identity of downloaded files; ``None``: there are none, or some are missing."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return None
    return " ".join(f"{one.st_size} {one.st_mtime_ns} {one.st_ino}" for one in found) or None


def _source(spec: LoadSpec) -> Source | None:
    try:
        return parse_source(spec.source)
    except BadSourceError:
        return None


def _files_identity(path: Path) -> str:
    """The whole folder of a file counts: shards lie side by side."""
    folder = path if path.is_dir() else path.parent
    return "\n".join(
        f"{file.relative_to(folder)} {stats.st_size} {stats.st_mtime_ns} {stats.st_ino}"
        for file, stats in files_under(folder)
        if path.is_dir() or file.parent == folder
    )


def _commit(source: HubSource, repo: str, revision: str | None) -> str | None:
    from inference.loading.sources.hub import HuggingFaceHub  # takes its time to import

    return HuggingFaceHub(source.endpoint, source.token).commit(repo, revision)
