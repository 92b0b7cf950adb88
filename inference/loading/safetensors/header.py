"""Opens safetensors files whose headers are sound. The library checks that tensors lie in the file,
and apart; it leaves unchecked that no tensor is named twice, and reads the last. Imports no torch.

    8 bytes: the header's length | header, JSON | tensors' bytes
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors

from inference.protocol.load_errors import BadFileError

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""The library refuses longer ones."""


def open_checked(path: Path) -> Any:
    """The library's handle, whose tensors are torch's. Reads the header alone. Raises
    ``BadFileError``."""
    check_names_once(path)
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None


def check_names_once(path: Path) -> None:
    """Raises ``BadFileError``."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > min(MOST_HEADER_BYTES, path.stat().st_size - LENGTH_BYTES):
                raise BadFileError(f"{path} ends inside its header; download or copy it again")
            json.loads(file.read(length), object_pairs_hook=_once)
    except _TwiceError as error:
        raise BadFileError(f"{path.name} holds {error} twice") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None


class _TwiceError(Exception):
    """The message is the key."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return found
