"""Who changes something: a person, a key, or a part of the system. Pure."""

from __future__ import annotations

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
    """``name``: the user's name or the key's prefix; parts of the system have none."""

    kind: ActorKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


COMMAND = Actor(ActorKind.COMMAND)
GATEWAY = Actor(ActorKind.GATEWAY)
CONTROL = Actor(ActorKind.CONTROL)


def user_actor(username: str) -> Actor:
    return Actor(ActorKind.USER, username)


def key_actor(prefix: str) -> Actor:
    return Actor(ActorKind.KEY, prefix)
