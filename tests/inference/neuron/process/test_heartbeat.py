"""A gateway is dead when its key is missing, unless Redis stood still and let it expire."""

from __future__ import annotations

import redis

from inference.neuron.process.heartbeat import MISSES_UNTIL_DEAD_ANYWAY, GatewayWatch
from inference.protocol.keys import HEARTBEAT_INTERVAL_S, gateway_alive_key
from inference.protocol.stalls import SETTLING_S


class Beats:
    """Looks once a beat for one gateway."""

    def __init__(self, client: redis.Redis) -> None:
        self.now_s = 100.0
        self.client = client
        self.watch = GatewayWatch(client, clock=lambda: self.now_s)

    def check(self, after_s: float = HEARTBEAT_INTERVAL_S) -> bool:
        self.now_s += after_s
        return self.watch.dead({"gw"}) == ["gw"]

    def alive(self) -> None:
        self.client.set(gateway_alive_key("gw"), b"1")
        assert not self.check()
        self.client.delete(gateway_alive_key("gw"))


def test_missing_twice_is_dead(redis_db: redis.Redis) -> None:
    beats = Beats(redis_db)
    beats.alive()
    assert [beats.check(), beats.check()] == [False, True]
    beats.alive()


def test_after_a_pause_it_has_time_to_write_its_key(redis_db: redis.Redis) -> None:
    """Also after a beat that failed."""
    beats = Beats(redis_db)
    beats.alive()
    assert not beats.check(after_s=30.0)
    for _ in range(int(SETTLING_S / HEARTBEAT_INTERVAL_S) - 1):
        assert not beats.check()
    assert beats.check(), "it had time"
    beats.alive()
    beats.watch.interrupted()
    assert not any(beats.check() for _ in range(3))


def test_where_beats_are_slow_it_is_dead_in_the_end(redis_db: redis.Redis) -> None:
    beats = Beats(redis_db)
    num_checks = 0
    while not beats.check(after_s=3.0):
        num_checks += 1
    assert num_checks == MISSES_UNTIL_DEAD_ANYWAY - 1
