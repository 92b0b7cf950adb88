"""Memory reservations by owner: cases, and invariants after any sequence of them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.neuron.loads.memory_ledger import NO_LIMITS, MemoryLedger
from inference.settings.neuron import MemoryLimits
from tests.inference.neuron.devices import GB, card, host


def ledger(**promised_gb: float) -> MemoryLedger:
    """Loads that wait for cuda:0, in this order."""
    made = MemoryLedger()
    for owner, gigabytes in promised_gb.items():
        made.accept(owner, ["cuda:0"], int(gigabytes * GB))
    return made


def limits(**gigabytes: float) -> MemoryLimits:
    return MemoryLimits(tuple((name, int(size * GB)) for name, size in gigabytes.items()))


def test_what_waits_is_not_free() -> None:
    reduced, other = ledger(a=5).without_promised([card(0, 20), card(1, 20)])
    assert (reduced.free_memory_bytes, reduced.reserved_bytes) == (15 * GB, 5 * GB)
    assert (other.free_memory_bytes, other.reserved_bytes) == (20 * GB, 0)


def test_what_is_held_already_is_not_counted_twice() -> None:
    book = ledger(a=5)
    book.begin("a", ["cuda:0"], 5 * GB)
    book.hold("a", 3 * GB)
    (reduced,) = book.without_promised([card(0, 17)])
    assert (reduced.free_memory_bytes, reduced.reserved_bytes) == (15 * GB, 2 * GB)


def test_promises_beyond_what_is_free_leave_nothing_and_never_less() -> None:
    (reduced,) = ledger(a=50).without_promised([card(0, 20)])
    assert reduced.free_memory_bytes == 0


def test_a_card_with_the_hosts_memory_is_promised_it_once() -> None:
    book = MemoryLedger()
    book.share_host_memory(["cuda:0"])
    book.accept("a", ["cuda:0"], 30 * GB)
    book.begin("a", ["cuda:0"], 30 * GB)
    devices = [card(0, 100), card(1, 24), host(100)]
    free = [reduced.free_memory_bytes for reduced in book.without_promised(devices)]
    assert free == [70 * GB, 24 * GB, 70 * GB]
    book.accept("b", ["cpu"], 20 * GB)
    assert book.limit_bytes("b", "cpu", 100 * GB, 20 * GB) == 70 * GB
    assert book.outstanding_bytes("cuda:0") == 50 * GB
    book.share_host_memory([])
    assert book.outstanding_bytes("cuda:0") == 30 * GB


def test_only_its_device_gives() -> None:
    book = MemoryLedger()
    book.accept("a", ["cpu"], 5 * GB)
    (cpu, cuda) = book.without_promised([host(8), card(0, 8)])
    assert (cpu.free_memory_bytes, cuda.free_memory_bytes) == (3 * GB, 8 * GB)


def test_a_load_leaves_later_ones_their_promise() -> None:
    assert ledger(a=5, b=8).limit_bytes("a", "cuda:0", 20 * GB, 5 * GB) == 12 * GB


def test_but_not_what_it_needs_itself() -> None:
    assert ledger(a=15, b=8).limit_bytes("a", "cuda:0", 20 * GB, 15 * GB) == 15 * GB


def test_a_load_of_unknown_size_goes_before_later_ones() -> None:
    assert ledger(a=0, b=8).limit_bytes("a", "cuda:0", 20 * GB, None) == 20 * GB


def test_earlier_promises_are_kept_whatever_a_load_needs() -> None:
    assert ledger(a=8, b=15).limit_bytes("b", "cuda:0", 20 * GB, 15 * GB) == 12 * GB


def test_what_would_leave_counts_as_free() -> None:
    book = ledger(a=10, b=12)
    book.begin("a", ["cuda:0"], 10 * GB)
    book.hold("a", 9 * GB)
    assert book.limit_bytes("b", "cuda:0", 5 * GB, 12 * GB) == 4 * GB
    assert book.limit_bytes("b", "cuda:0", 5 * GB, 12 * GB, gone=["a"]) == 14 * GB


def test_an_engine_that_died_keeps_its_place() -> None:
    book = ledger(a=10)
    book.begin("a", ["cuda:0"], 10 * GB)
    book.hold("a", 10 * GB)
    book.accept("b", ["cuda:0"], 0)
    assert book.limit_bytes("b", "cuda:0", 14 * GB, None) == 14 * GB
    book.hold("a", 0)  # its memory is free again, as the driver sees it
    assert book.limit_bytes("b", "cuda:0", 24 * GB, None) == 14 * GB


def test_a_limit_bounds_what_all_owners_hold_of_a_device() -> None:
    book = MemoryLedger(limits(**{"cuda:0": 10}))
    book.accept("a", ["cuda:0"], 4 * GB)
    limited, free = book.without_promised([card(0, 20), card(1, 20)])
    assert (limited.free_memory_bytes, limited.reserved_bytes) == (6 * GB, 4 * GB)
    assert (limited.total_memory_bytes, limited.installed_memory_bytes) == (10 * GB, 24 * GB)
    assert (free.total_memory_bytes, free.installed_memory_bytes) == (24 * GB, None)
    book.begin("a", ["cuda:0"], 4 * GB)
    book.hold("a", 3 * GB)
    book.accept("b", ["cuda:0"], 0)
    assert book.limit_bytes("b", "cuda:0", 17 * GB, None) == 6 * GB
    assert book.limit_bytes("b", "cuda:0", 17 * GB, None, gone=["a"]) == 10 * GB
    assert book.limit_bytes("b", "cuda:0", 17 * GB, None, asleep=[("a", GB)]) == 9 * GB
    assert book.limit_bytes("b", "cuda:0", 2 * GB, None, gone=["a"]) == 5 * GB


def test_other_programs_may_leave_less_than_the_limit() -> None:
    book = MemoryLedger(limits(cpu=100))
    (reduced,) = book.without_promised([host(8, 64)])
    assert (reduced.free_memory_bytes, reduced.total_memory_bytes) == (8 * GB, 64 * GB)
    assert reduced.installed_memory_bytes is None


def test_a_limit_of_the_processors_is_none_of_a_card_with_the_hosts_memory() -> None:
    book = MemoryLedger(limits(cpu=6))
    book.share_host_memory(["cuda:0"])
    book.accept("a", ["cuda:0"], 30 * GB)
    cuda, cpu = book.without_promised([card(0, 100, 128), host(100)])
    assert (cuda.free_memory_bytes, cpu.free_memory_bytes) == (70 * GB, 6 * GB)
    book.accept("b", ["cuda:0"], 68 * GB)
    (cpu,) = book.without_promised([host(100)])
    assert cpu.free_memory_bytes == 2 * GB


class Neuron(RuleBasedStateMachine):
    """A card of 100 onto which loads come in turn, each taking at most what it was granted. Engines
    die and start again, others leave."""

    TOTAL = 100
    LIMITS = NO_LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger(self.LIMITS)
        self.waiting: list[str] = []
        self.granted: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.num_loads = 0

    @property
    def free(self) -> int:
        return self.TOTAL - sum(self.held.values())

    @rule(num_bytes=st.integers(0, 120))
    def accept(self, num_bytes: int) -> None:
        self.num_loads += 1
        owner = f"load {self.num_loads}"
        self.ledger.accept(owner, ["cuda:0"], num_bytes)
        self.waiting.append(owner)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), share=st.floats(0, 1), known=st.booleans())
    def load(self, data: st.DataObject, share: float, known: bool) -> None:
        """Loads come in any order: each waits for its files."""
        owner = data.draw(st.sampled_from(self.waiting))
        holding = self.ledger.holding(owner)
        assert holding is not None
        needed = holding.num_bytes if known else None
        limit = self.ledger.limit_bytes(owner, "cuda:0", self.free, needed)
        self.waiting.remove(owner)
        if needed is not None and limit < needed:
            self.ledger.release(owner)
            return
        self.ledger.begin(owner, ["cuda:0"], limit)
        self.granted[owner] = int(limit * share)
        self.held[owner] = self.granted[owner]
        self.ledger.settle(owner, self.granted[owner])
        self.ledger.hold(owner, self.held[owner])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.held)))
        self.held[owner] = 0
        self.ledger.hold(owner, 0)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def start_again(self, data: st.DataObject) -> None:
        """Its memory is free, whatever other models have loaded meanwhile."""
        owner = data.draw(st.sampled_from(sorted(self.held)))
        assert self.granted[owner] - self.held[owner] <= self.free
        self.held[owner] = self.granted[owner]
        self.ledger.hold(owner, self.held[owner])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[owner], self.granted[owner]
        self.ledger.release(owner)

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        self.ledger.check_integrity()
        limit = self.LIMITS.of("cuda:0")
        assert sum(self.granted.values()) <= (self.TOTAL if limit is None else limit)
        assert self.free >= 0


TestNeuron = Neuron.TestCase


class LimitedNeuron(Neuron):
    """Other programs may have the rest of its card."""

    LIMITS = MemoryLimits((("cuda:0", 60),))


TestLimitedNeuron = LimitedNeuron.TestCase
