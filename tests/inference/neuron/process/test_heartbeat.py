"""A gateway is dead when its key is missing, unless Redis stood still and let it expire."""

from __future__ import annotations

import redis

from inference.neuron.process.heartbeat import MISSES_UNTIL_DEAD_ANYWAY, GatewayWatch
from inference.protocol.keys import HEARTBEAT_INTERVAL_S, gateway_alive_key
from inference.protocol.stalls import SETTLING_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Beats:
    """Looks once a beat for one gateway."""

    def __init__(self, client: redis.Redis) -> None:
        self.clock = Clock()
        self.watch = GatewayWatch(client, clock=self.clock)

    def check(self, after_s: float = HEARTBEAT_INTERVAL_S) -> bool:
        self.clock.now_s += after_s
        return self.watch.dead({"gw"}) == ["gw"]


def test_missing_twice_is_dead(redis_db: redis.Redis) -> None:
    redis_db.set(gateway_alive_key("gw"), b"1")
    beats = Beats(redis_db)
    assert not beats.check()
    redis_db.delete(gateway_alive_key("gw"))
    assert not beats.check()
    assert beats.check()
    redis_db.set(gateway_alive_key("gw"), b"1")
    assert not beats.check()


def test_after_a_pause_it_has_time_to_write_its_key(redis_db: redis.Redis) -> None:
    redis_db.set(gateway_alive_key("gw"), b"1")
    beats = Beats(redis_db)
    assert not beats.check()
    redis_db.delete(gateway_alive_key("gw"))
    assert not beats.check(after_s=30.0)
    for _ in range(int(SETTLING_S / HEARTBEAT_INTERVAL_S) - 1):
        assert not beats.check()
    assert beats.check(), "it had time"


def test_a_beat_that_failed_is_a_pause(redis_db: redis.Redis) -> None:
    beats = Beats(redis_db)
    redis_db.set(gateway_alive_key("gw"), b"1")
    assert not beats.check()
    redis_db.delete(gateway_alive_key("gw"))
    beats.watch.interrupted()
    for _ in range(3):
        assert not beats.check()


def test_where_beats_are_slow_it_is_dead_in_the_end(redis_db: redis.Redis) -> None:
    beats = Beats(redis_db)
    num_checks = 0
    while not beats.check(after_s=3.0):
        num_checks += 1
    assert num_checks == MISSES_UNTIL_DEAD_ANYWAY - 1
