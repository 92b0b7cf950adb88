"""scripts/bench-hostile fails where an attack costs the others more than its bounds."""

from __future__ import annotations

from benchmarks.gateway.hostile import Beside, over_bounds
from benchmarks.gateway.measure import Reading
from tests.cases import each_case

MB = 1_000_000


def beside(attacked_p99_ms: float, **grown: int) -> Beside:
    def reading(p99_ms: float) -> Reading:
        return Reading(
            num_requests=100,
            requests_per_s=10.0,
            p50_ms=20.0,
            p99_ms=p99_ms,
            cpu_ms_per_request=5.0,
        )

    return Beside(reading(40.0), reading(attacked_p99_ms), grown)


@each_case(
    ("one", "over"),
    [
        (beside(140.0, gateway=50 * MB, control=0, redis=0), []),
        (beside(30.0, gateway=-MB, control=0, redis=0), []),
        (beside(140.1), ["flood (over 100 ms)"]),
        (beside(40.0, gateway=50 * MB + 1), ["flood (gateway over 50 MB)"]),
        (
            beside(200.0, gateway=0, control=60 * MB, redis=51 * MB),
            ["flood (over 100 ms, control over 50 MB, redis over 50 MB)"],
        ),
    ],
)
def test_an_attack_over_a_bound_is_named(one: Beside, over: list[str]) -> None:
    assert over_bounds({"harmless": beside(41.0, redis=MB), "flood": one}) == over
