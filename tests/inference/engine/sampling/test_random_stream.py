"""What a sequence draws follows from its seed and the place alone."""

from __future__ import annotations

from inference.engine.sampling.sampler import RandomStream
from tests.cases import each_case


def drawn(seed: int) -> list[float]:
    stream = RandomStream(seed)
    return [stream.uniform(place) for place in range(4)]


@each_case("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_seed_draws_the_same_again(seed: int) -> None:
    assert drawn(seed) == drawn(seed)


@each_case("seed", [1, 42, 2**63 - 1])
def test_a_negative_seed_is_another_than_its_absolute_value(seed: int) -> None:
    assert drawn(-seed) != drawn(seed)


def test_the_newest_place_and_that_before_are_drawn_again() -> None:
    stream = RandomStream(7)
    first, second = stream.uniform(0), stream.uniform(1)
    assert [stream.uniform(0), stream.uniform(1), stream.uniform(1)] == [first, second, second]
