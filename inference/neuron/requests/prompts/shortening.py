"""Leaving out a conversation's oldest turns until its prompt fits, for clients that asked for that.

turns  | 0 | 1 | 2 | 3 |        may_lose [2, 4, 6]: how many messages the first 1, 2, 3 turns are
tried  all, then by halves: the fewest lost turns with which it fits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from inference.protocol.generation import ChatInput


@dataclass(frozen=True, slots=True)
class Shortened:
    chat: ChatInput
    num_lost_turns: int = 0


def shortened(chat: ChatInput, fits: Callable[[ChatInput], bool]) -> Shortened:
    """The conversation without its oldest turns, as many as needed to fit, or without all removable
    turns if even that is not enough. ``fits`` is called a few times; it must be monotonic: true
    stays true if more is left out."""
    if not chat.may_lose or fits(chat):
        return Shortened(chat)
    least, most = 1, len(chat.may_lose)
    while least < most:
        middle = (least + most) // 2
        if fits(_without(chat, middle)):
            most = middle
        else:
            least = middle + 1
    return Shortened(_without(chat, most), most)


def _without(chat: ChatInput, num_turns: int) -> ChatInput:
    num_messages = chat.may_lose[num_turns - 1]
    kept = [message for message in chat.messages[:num_messages] if message.role == "system"]
    return msgspec.structs.replace(chat, messages=kept + chat.messages[num_messages:], may_lose=[])
