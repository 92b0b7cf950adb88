"""A stage's end of its control connection: what the engine asks for, and the answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from inference.engine.errors import ChannelClosedError, ChannelError
from inference.engine.serving.channel import Channel
from inference.engine.stages.messages import FromStage, ToStage, decode_to_stage, encode

log = logging.getLogger(__name__)


class Replies:
    """The control connection. Any thread may send."""

    def __init__(self, channel: Channel, on_gone: Callable[[], object]) -> None:
        """``on_gone`` is called by whatever notices that the engine is gone."""
        self._channel = channel
        self._on_gone = on_gone
        self._sending = threading.Lock()
        self.is_gone = threading.Event()

    def send(self, message: FromStage) -> None:
        try:
            with self._sending:
                self._channel.send(encode(message))
        except ChannelClosedError:
            self._note_gone()

    def receive(self) -> ToStage | None:
        """``None``: the engine is gone, or sends what no engine does."""
        try:
            message: ToStage = decode_to_stage(self._channel.receive())
            return message
        except (ChannelError, msgspec.MsgspecError) as error:
            log.info("the engine's control link: %s", error)
            self._note_gone()
            return None

    def _note_gone(self) -> None:
        self.is_gone.set()
        self._on_gone()
