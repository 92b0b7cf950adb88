"""The contents of clients' files and the results of batches, which lie beside the database."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from helexa_site.config import Config

FOLDER = "files"


def copy_files(config: Config, folder: Path) -> int:
    """Copies them after the database, so that each row has its content. Returns how many."""
    source = files_dir(config)
    target = folder / FOLDER
    num_files = 0
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if not path.is_file():
            continue
        target.mkdir(exist_ok=True)
        try:
            _copy(path, target / path.name)
        except FileNotFoundError:  # deleted meanwhile
            continue
        num_files += 1
    return num_files


def restore_files(config: Config, folder: Path) -> int:
    """Puts them where this host's gateways look. Returns how many."""
    source = folder / FOLDER
    if not source.is_dir():
        return 0
    target = files_dir(config)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = sorted(source.iterdir())
    for path in paths:
        new = target / f".{path.name}.restored"
        shutil.copyfile(path, new)
        new.chmod(0o600)
        new.replace(target / path.name)
    return len(paths)


def files_dir(config: Config) -> Path:
    return config.files_dir or config.data_dir / FOLDER


def _copy(source: Path, target: Path) -> None:
    """A finished file never changes, so a link is a copy of it; a part of results still grows."""
    if "." not in source.name:
        try:
            os.link(source, target)
            return
        except OSError:  # on another disk, or one without links
            pass
    shutil.copyfile(source, target)
