"""The author of a change: a person, a key, or a part of the system."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from enum import StrEnum


class ActorKind(StrEnum):
    USER = "user"
    KEY = "key"
    COMMAND = "command"
    GATEWAY = "gateway"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Actor:
    """``name``: the user's name or the key's prefix; for a command the operating system's user and
    the host; empty for parts of the system."""

    kind: ActorKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


def _user_and_host() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers run as unnamed user ids
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


COMMAND = Actor(ActorKind.COMMAND, _user_and_host())
GATEWAY = Actor(ActorKind.GATEWAY)
CONTROL = Actor(ActorKind.CONTROL)


def user_actor(username: str) -> Actor:
    return Actor(ActorKind.USER, username)


def key_actor(prefix: str) -> Actor:
    return Actor(ActorKind.KEY, prefix)
