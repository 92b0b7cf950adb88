"""The line that an invited host is given: everything that its neuron needs to reach Redis.

``hx1.`` and base64 of JSON. It holds a password, so a file with it must be readable by its owner
alone. Standard library only: it is read before anything is installed.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, field

PREFIX = "hx1."


class JoinLineError(ValueError):
    """The text is no line that ``neurons invite`` has printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    neuron: str
    redis_url: str = field(repr=False)
    certificate: str = ""
    """PEM: the one that Redis shows, where it is signed by itself; else the system knows it."""


def encode_joining(joining: Joining) -> str:
    data = json.dumps(asdict(joining), separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_joining(line: str) -> Joining:
    """Raises ``JoinLineError``."""
    word = "".join(line.split())
    if not word.startswith(PREFIX):
        raise JoinLineError(f"the text after --join is to begin with {PREFIX}")
    data = word.removeprefix(PREFIX)
    try:
        values = json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
        joining = Joining(**values)
    except (binascii.Error, ValueError, TypeError) as error:
        raise JoinLineError("the text after --join is not whole; paste all of it") from error
    if not all(isinstance(value, str) for value in values.values()):
        raise JoinLineError("the text after --join is not whole; paste all of it")
    return joining
