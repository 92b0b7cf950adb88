"""Looks at simulated cards all the time: whether more was ever taken of one than it has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

from tests.live.scripted.simulated_devices import SimulatedDevices
from tests.live.scripted.simulated_memory import overcommitted

LOOK_EVERY_S = 0.02


class CardWatch:
    def __init__(self, cards: Mapping[str, SimulatedDevices]) -> None:
        self.overcommitted: list[str] = []
        """The neuron, the card and by how many bytes, each time that it was seen."""
        self.num_looks = 0
        self._cards = cards
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            for neuron, simulated in list(self._cards.items()):
                excess = overcommitted(simulated)
                self.overcommitted += [f"{neuron} {card}: {num}" for card, num in excess.items()]
            self.num_looks += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def card_watch(cards: Mapping[str, SimulatedDevices]) -> Iterator[CardWatch]:
    watch = CardWatch(cards)
    try:
        yield watch
    finally:
        watch.stop()
