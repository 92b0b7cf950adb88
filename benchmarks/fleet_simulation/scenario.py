"""The simulated cards, models and requests with their times. All of it follows from the seed."""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate

GIB = 1024**3
CARD_GIB = ((8, 20), (12, 25), (16, 25), (24, 30))
"""Sizes and their shares in percent: consumer cards."""
MODEL_GIB = ((5, 20), (9, 20), (15, 25), (22, 25), (40, 10))
DISK_GIB_S = 1.0
LOAD_OVERHEAD_S = 5.0
MEAN_ANSWER_S = 8.0
LONGEST_ANSWER_S = 60.0
CARD_AWAY_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    num_neurons: int = 100
    cards_a_neuron: int = 4
    num_models: int = 500
    zipf: float = 1.1
    requests_a_s: float = 6.0
    bursts_an_hour: float = 60.0
    card_deaths_an_hour: float = 12.0
    duration_s: float = 7200.0


@dataclass(frozen=True, slots=True)
class SimModel:
    name: str
    size_bytes: int
    num_devices: int = 1

    @property
    def device_bytes(self) -> int:
        return -(-self.size_bytes // self.num_devices)

    @property
    def load_s(self) -> float:
        return LOAD_OVERHEAD_S + self.size_bytes / GIB / DISK_GIB_S


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    model: str
    answer_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """A card fails with the models on it; it is back later, empty."""

    at_s: float
    neuron: str
    card: int


@dataclass(frozen=True, slots=True)
class Scenario:
    size: Size
    cards: dict[str, tuple[int, ...]]
    """Bytes of each neuron's cards."""
    models: dict[str, SimModel]
    arrivals: tuple[Arrival, ...]
    deaths: tuple[Death, ...]

    @property
    def total_bytes(self) -> int:
        return sum(sum(cards) for cards in self.cards.values())


def make_scenario(size: Size, seed: int) -> Scenario:
    draw = random.Random(seed)
    cards = {
        f"n{number:03}": tuple(_pick(draw, CARD_GIB) * GIB for _ in range(size.cards_a_neuron))
        for number in range(size.num_neurons)
    }
    models = {}
    for number in range(size.num_models):
        gib = _pick(draw, MODEL_GIB) * draw.uniform(0.8, 1.1)
        name = f"m{number:03}"
        models[name] = SimModel(name, int(gib * GIB), 2 if gib > 24 else 1)
    return Scenario(size, cards, models, _arrivals(size, models, draw), _deaths(size, cards, draw))


def _arrivals(size: Size, models: dict[str, SimModel], draw: random.Random) -> tuple[Arrival, ...]:
    names = list(models)
    draw.shuffle(names)
    shares = list(accumulate(1 / rank**size.zipf for rank in range(1, len(names) + 1)))
    arrivals = []
    now_s = 0.0
    while (now_s := now_s + draw.expovariate(size.requests_a_s)) < size.duration_s:
        rank = bisect(shares, draw.random() * shares[-1])
        arrivals.append(Arrival(now_s, names[min(rank, len(names) - 1)], _answer_s(draw)))
    now_s = 0.0
    while (now_s := now_s + draw.expovariate(size.bursts_an_hour / 3600)) < size.duration_s:
        name = draw.choice(names)
        for _ in range(draw.randint(10, 60)):
            at_s = now_s + draw.uniform(0, 20)
            if at_s < size.duration_s:
                arrivals.append(Arrival(at_s, name, _answer_s(draw)))
    return tuple(sorted(arrivals, key=lambda arrival: (arrival.at_s, arrival.model)))


def _deaths(
    size: Size, cards: dict[str, tuple[int, ...]], draw: random.Random
) -> tuple[Death, ...]:
    deaths = []
    now_s = 0.0
    while (now_s := now_s + draw.expovariate(size.card_deaths_an_hour / 3600)) < size.duration_s:
        deaths.append(Death(now_s, draw.choice(list(cards)), draw.randrange(size.cards_a_neuron)))
    return tuple(deaths)


def _answer_s(draw: random.Random) -> float:
    return min(LONGEST_ANSWER_S, draw.expovariate(1 / MEAN_ANSWER_S))


def _pick(draw: random.Random, shares: tuple[tuple[int, int], ...]) -> int:
    return draw.choices([value for value, _ in shares], [share for _, share in shares])[0]
