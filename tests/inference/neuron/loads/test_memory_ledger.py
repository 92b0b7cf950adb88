"""Where loads go, and memory reservations by owner: cases, and invariants after any sequence of
them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import choose_devices
from inference.neuron.loads.memory_ledger import NO_LIMITS, Claim, MemoryLedger
from inference.protocol.load import LoadSpec
from inference.settings.neuron import MemoryLimits
from tests.cases import each_case
from tests.inference.neuron.devices import GB, card, host


def claimed(
    book: MemoryLedger, device: str, gigabytes: float, held_gb: float | None = None
) -> Claim:
    """``held_gb``: of a load that has begun; ``None``: it waits."""
    claim = book.claim([device])[device]
    claim.num_bytes = int(gigabytes * GB)
    if held_gb is not None:
        claim.is_begun, claim.held_bytes = True, int(held_gb * GB)
    return claim


def ledger(*promised_gb: float) -> tuple[MemoryLedger, list[Claim]]:
    """Loads that wait for cuda:0, in this order."""
    book = MemoryLedger()
    return book, [claimed(book, "cuda:0", gigabytes) for gigabytes in promised_gb]


def limits(**gigabytes: float) -> MemoryLimits:
    return MemoryLimits(tuple((name, int(size * GB)) for name, size in gigabytes.items()))


SPEC = LoadSpec(job_id="j", model="m", source="path:/m.gguf")
CARDS = [card(0, 2), card(1, 20), card(2, 5)]


@each_case(
    ("devices", "named", "changes", "expected"),
    [
        (CARDS, [], {}, ["cuda:1"]),
        ([host(110), *CARDS], [], {}, ["cuda:1"]),
        ([host(110)], [], {}, ["cpu"]),
        ([host(1), *CARDS], ["cuda:0"], {}, ["cuda:0"]),
        ([host(1), *CARDS], ["cpu"], {}, ["cpu"]),
        (CARDS, ["cuda:2", "cuda:0"], {}, ["cuda:2", "cuda:0"]),
        ([host(110), *CARDS], ["cuda"], {}, ["cuda:1"]),
        ([card(1, 8), card(0, 8)], [], {}, ["cuda:0"]),
        (CARDS, [], {"min_devices": 2}, ["cuda:1", "cuda:2"]),
        (CARDS, [], {"tensor_parallel": 2}, ["cuda:1", "cuda:2"]),
        ([host(8)], [], {"tensor_parallel": 2}, ["cpu"]),
        (CARDS, ["cuda:7"], {}, "'cuda:7' is not here; this neuron has cuda:0, cuda:1, cuda:2"),
        (CARDS, ["cpu"], {}, "this neuron has cuda:0, cuda:1, cuda:2"),
        ([host(1)], ["cuda"], {}, "1 cuda devices are needed and this neuron has cpu"),
        (CARDS, [], {"tensor_parallel": 4}, "4 cuda devices are needed"),
        ([], [], {}, "no device"),
    ],
)
def test_the_freest_devices_are_chosen_unless_some_are_named(
    devices: Any, named: list[str], changes: Any, expected: list[str] | str
) -> None:
    spec = msgspec.structs.replace(SPEC, devices=named, **changes)
    if isinstance(expected, list):
        assert choose_devices(spec, devices) == expected
        return
    with pytest.raises(LoadRefusedError, match=expected) as refused:
        choose_devices(spec, devices)
    assert refused.value.failure.code == "no_device"  # of another neuron, or another day


def test_a_card_with_the_hosts_memory_is_promised_it_once() -> None:
    book = MemoryLedger()
    book.share_host_memory(["cuda:0"])
    claimed(book, "cuda:0", 30, held_gb=0)
    devices = [card(0, 100), card(1, 24), host(100)]
    free = [reduced.free_memory_bytes for reduced in book.without_promised(devices)]
    assert free == [70 * GB, 24 * GB, 70 * GB]
    later = claimed(book, "cpu", 20)
    assert book.limit_bytes(later, "cpu", 100 * GB, 20 * GB) == 70 * GB
    assert book.outstanding_bytes("cuda:0") == 50 * GB
    book.share_host_memory([])
    assert book.outstanding_bytes("cuda:0") == 30 * GB


def test_the_limit_of_a_load() -> None:
    for promised_gb, which, needed_gb, limit_gb in (
        ((5, 8), 0, 5, 12),  # a load leaves later ones their promise
        ((15, 8), 0, 15, 15),  # but not what it needs itself
        ((0, 8), 0, None, 20),  # one of unknown size goes before later ones
        ((8, 15), 1, 15, 12),  # earlier promises are kept whatever a load needs
    ):
        book, claims = ledger(*promised_gb)
        needed = None if needed_gb is None else needed_gb * GB
        assert book.limit_bytes(claims[which], "cuda:0", 20 * GB, needed) == limit_gb * GB
    # One that moves to another card keeps its place.
    book, (first, later) = ledger(5, 8)
    (moved,) = book.claim(["cuda:1"], before=[first]).values()
    moved.num_bytes = 5 * GB
    assert book.outstanding_bytes("cuda:0") == 8 * GB
    (later,) = book.claim(["cuda:1"], before=[later]).values()
    assert book.limit_bytes(later, "cuda:1", 20 * GB, 20 * GB) == 15 * GB


def test_a_limit_bounds_what_all_owners_hold_of_a_device() -> None:
    book = MemoryLedger(limits(**{"cuda:0": 10}))
    first = claimed(book, "cuda:0", 4)
    limited, free = book.without_promised([card(0, 20), card(1, 20)])
    assert (limited.free_memory_bytes, limited.reserved_bytes) == (6 * GB, 4 * GB)
    assert (limited.total_memory_bytes, limited.installed_memory_bytes) == (10 * GB, 24 * GB)
    assert (free.total_memory_bytes, free.installed_memory_bytes) == (24 * GB, None)
    assert (free.free_memory_bytes, free.reserved_bytes) == (20 * GB, 0)
    first.is_begun, first.held_bytes = True, 3 * GB
    later = claimed(book, "cuda:0", 0)
    assert book.limit_bytes(later, "cuda:0", 17 * GB, None) == 6 * GB
    assert book.limit_bytes(later, "cuda:0", 17 * GB, None, gone=[first]) == 10 * GB
    assert book.limit_bytes(later, "cuda:0", 17 * GB, None, asleep={first: GB}) == 9 * GB
    assert book.limit_bytes(later, "cuda:0", 2 * GB, None, gone=[first]) == 5 * GB
    (reduced,) = ledger(50)[0].without_promised([card(0, 20)])
    assert (reduced.free_memory_bytes, reduced.reserved_bytes) == (0, 50 * GB), "never less"
    (reduced,) = MemoryLedger(limits(cpu=100)).without_promised([host(8, 64)])
    assert (reduced.free_memory_bytes, reduced.total_memory_bytes) == (8 * GB, 64 * GB)
    assert reduced.installed_memory_bytes is None, "other programs leave less"
    book = MemoryLedger(limits(cpu=6))
    book.share_host_memory(["cuda:0"])
    claimed(book, "cuda:0", 30)  # of a card with the host's memory, which has no limit
    cuda, cpu = book.without_promised([card(0, 100, 128), host(100)])
    assert (cuda.free_memory_bytes, cpu.free_memory_bytes) == (70 * GB, 6 * GB)
    claimed(book, "cuda:0", 68)
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
        self.waiting: list[Claim] = []
        self.begun: list[Claim] = []

    @property
    def free(self) -> int:
        return self.TOTAL - sum(claim.held_bytes for claim in self.begun)

    @rule(num_bytes=st.integers(0, 120))
    def accept(self, num_bytes: int) -> None:
        claim = self.ledger.claim(["cuda:0"])["cuda:0"]
        claim.num_bytes = num_bytes
        self.waiting.append(claim)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), share=st.floats(0, 1), known=st.booleans())
    def load(self, data: st.DataObject, share: float, known: bool) -> None:
        """Loads come in any order: each waits for its files."""
        claim = data.draw(st.sampled_from(self.waiting))
        needed = claim.num_bytes if known else None
        limit = self.ledger.limit_bytes(claim, "cuda:0", self.free, needed)
        self.waiting.remove(claim)
        if needed is not None and limit < needed:
            self.ledger.release([claim])
            return
        claim.is_begun = True
        claim.num_bytes = claim.held_bytes = int(limit * share)
        self.begun.append(claim)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.begun)).held_bytes = 0

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def start_again(self, data: st.DataObject) -> None:
        """Its memory is free, whatever other models have loaded meanwhile."""
        claim = data.draw(st.sampled_from(self.begun))
        assert claim.outstanding_bytes <= self.free
        claim.held_bytes = claim.num_bytes

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.begun))
        self.begun.remove(claim)
        self.ledger.release([claim])

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        limit = self.LIMITS.of("cuda:0")
        assert sum(claim.num_bytes for claim in self.begun) <= (
            self.TOTAL if limit is None else limit
        )
        assert self.free >= 0


TestNeuron = Neuron.TestCase


class LimitedNeuron(Neuron):
    """Other programs may have the rest of its card."""

    LIMITS = MemoryLimits((("cuda:0", 60),))


TestLimitedNeuron = LimitedNeuron.TestCase
