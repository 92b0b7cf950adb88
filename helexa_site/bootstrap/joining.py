"""An invited host's parameters, stored for later starts: one file for each name.

neurons/<name>.join   address and password of its Redis, mode 0600
neurons/<name>.pem    the certificate of that Redis, where it is signed by itself
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.whole_file import write_whole
from inference.protocol.joining import Joining

FOLDER = "neurons"


def keep_joining(joining: Joining, data_dir: Path) -> None:
    """Raises ``BootstrapError``."""
    folder = data_dir / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / f"{joining.neuron}.join", json.dumps(asdict(joining)))
        if joining.certificate:
            write_whole(_certificate_path(joining, data_dir), joining.certificate)
    except OSError as error:
        raise BootstrapError(f"cannot keep the invitation in {folder}: {error.strerror}") from error


def kept_joining(data_dir: Path, name: str | None) -> Joining | None:
    """The parameters stored under that name, or the only ones; ``None``: there are none. Raises
    ``BootstrapError`` where several could be meant or the file cannot be read."""
    folder = data_dir / FOLDER
    paths = sorted(folder.glob("*.join")) if name is None else [folder / f"{name}.join"]
    if len(paths) > 1:
        names = ", ".join(path.stem for path in paths)
        raise BootstrapError(f"this host has joined as {names}; choose one with --name")
    for path in paths:
        try:
            return Joining(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise BootstrapError(f"{path} cannot be read; join again: {error}") from error
    return None


def redis_url_of(joining: Joining, data_dir: Path) -> str:
    if not joining.redis_url.startswith("rediss://"):
        return joining.redis_url
    if not joining.certificate:
        return f"{joining.redis_url}?ssl_cert_reqs=required&ssl_check_hostname=true"
    # That certificate alone, with any host name.
    path = _certificate_path(joining, data_dir)
    return (
        f"{joining.redis_url}?ssl_cert_reqs=required&ssl_check_hostname=false&ssl_ca_certs={path}"
    )


def _certificate_path(joining: Joining, data_dir: Path) -> Path:
    return (data_dir / FOLDER / f"{joining.neuron}.pem").absolute()
