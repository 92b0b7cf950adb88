"""Parts of a backup beside the database: clients' files and results of batches; the signing key,
joining parameters, and set variables."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from helexa_site.backup.archive import BackupError
from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.data_directory import JOINED, secret_key
from helexa_site.doctor.examine import SET_BY_THE_START
from helexa_site.whole_file import write_whole, written_whole
from inference.settings.gateway import SECRET_KEY
from inference.settings.installation import URL
from inference.settings.table import NAMES

FOLDER = "files"


def copy_files(config: Config, folder: Path) -> None:
    """Copies them after the database, so that each row has its content."""
    source = files_dir(config)
    target = folder / FOLDER
    for path in source.iterdir() if source.is_dir() else ():
        if path.is_file():
            target.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                _copy(path, target / path.name)


def restore_files(config: Config, folder: Path) -> None:
    """Restores them to this host's directory."""
    source = folder / FOLDER
    if not source.is_dir():
        return
    target = files_dir(config)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in source.iterdir():
        with path.open("rb") as file, written_whole(target / path.name) as new:
            shutil.copyfileobj(file, new)


def files_dir(config: Config) -> Path:
    return config.files_dir or config.data_dir / FOLDER


def _copy(source: Path, target: Path) -> None:
    """A finished file never changes, so a link is a copy of it; unfinished results still grow."""
    if "." not in source.name:
        try:
            os.link(source, target)
            return
        except OSError:  # on another disk, or one without links
            pass
    shutil.copyfile(source, target)


SETTINGS = "settings.env"
OF_THE_MOMENT = SET_BY_THE_START | {
    SECRET_KEY.name,  # a file of its own
    URL.name,
}


def copy_secrets(config: Config, environment: Mapping[str, str], folder: Path) -> None:
    write_whole(folder / SECRET_KEY_FILE, secret_key(config))
    write_whole(folder / SETTINGS, settings_text(environment))
    if (joined := config.data_dir / JOINED).is_dir():
        shutil.copytree(joined, folder / JOINED)


def settings_text(environment: Mapping[str, str]) -> str:
    names = sorted((NAMES - OF_THE_MOMENT) & environment.keys())
    return "".join(f"{name}={shlex.quote(environment[name])}\n" for name in names)


def ensure_key_fits(config: Config, folder: Path) -> None:
    """Raises ``BackupError`` where another key is set here, which would invalidate restored
    sessions and keys."""
    restored = (folder / SECRET_KEY_FILE).read_text()
    if config.secret_key is not None and config.secret_key != restored:
        raise BackupError(
            "HELEXA_SECRET_KEY is another one here than in the backup, and no API key of the "
            "backup would be known: unset it, or set it to what is in the backup's secret_key"
        )


def restore_settings(config: Config, folder: Path) -> Path:
    """Returns the path of the settings. The operator sets them again: addresses may have
    changed."""
    if (joined := folder / JOINED).is_dir():
        (config.data_dir / JOINED).mkdir(mode=0o700, exist_ok=True)
        for path in joined.iterdir():
            _put(path, config.data_dir / JOINED / path.name)
    settings = config.data_dir / f"restored-{SETTINGS}"
    _put(folder / SETTINGS, settings)
    return settings


def restore_key(config: Config, folder: Path) -> None:
    if config.secret_key is None:
        _put(folder / SECRET_KEY_FILE, config.data_dir / SECRET_KEY_FILE)


def _put(source: Path, target: Path) -> None:
    """Copies the file. An existing one with other content is kept beside it."""
    text = source.read_text()
    if target.exists() and (existing := target.read_text()) != text:
        write_whole(target.with_name(f"{target.name}.before-restore"), existing)
    write_whole(target, text)
