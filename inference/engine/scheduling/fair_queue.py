"""Fair queueing of many accounts' items: no account waits for more than one item of another.

Start-time fair queueing: each account's first item has a start on a virtual clock, and the earliest
start is next.

    acme    [ 12 | 13 | 14 … 200 ]    its first item starts at 4096
    bert    [ 201 ]                   starts at 2048  ◀─ next

    taken: the clock is set to its start; the account's next item starts cost / weight later
    added to an account with nothing waiting: it starts now, or where the account's last item ended

Anonymous callers have a clock of their own and are taken only while no known account waits. Plain
integers: knows neither time nor what the items are. For one thread.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

from inference.engine.errors import IntegrityError

WEIGHT_UNIT = 1 << 16
"""The factor that keeps a cost divided by a weight whole, and large enough."""
SWEEP_BEYOND = 64
"""The number of idle accounts that are kept in any case."""

Item = TypeVar("Item", bound=Hashable)


@dataclass(eq=False, slots=True)
class _Entry(Generic[Item]):
    item: Item
    account: _Account[Item]
    order: int
    cost: int


@dataclass(eq=False, slots=True)
class _Account(Generic[Item]):
    is_anonymous: bool
    weight: int = 1
    start: int = 0
    end: int = 0
    """The virtual time at which its last taken entry ends."""
    entries: list[_Entry[Item]] = field(default_factory=list)

    @property
    def rank(self) -> tuple[bool, int, int]:
        return self.is_anonymous, self.start, self.entries[0].order


class FairQueue(Generic[Item]):
    """A change costs O(accounts) when the next item is asked for, and nothing until then."""

    def __init__(self) -> None:
        self._entries: dict[Item, _Entry[Item]] = {}
        self._accounts: dict[tuple[bool, str], _Account[Item]] = {}
        """The accounts with entries, and the idle ones whose last entry has not ended."""
        self._now = {False: 0, True: 0}
        self._first: _Entry[Item] | None = None
        """The next entry, if it is known."""
        self._sweep_at = SWEEP_BEYOND

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def add(
        self,
        item: Item,
        *,
        account: str,
        order: int,
        cost: int,
        weight: int = 1,
        is_anonymous: bool = False,
    ) -> None:
        """``order``, unlike every other item's, ranks it among its account's."""
        key = is_anonymous, account
        owner = self._accounts.get(key)
        if owner is None:
            owner = self._accounts[key] = _Account(is_anonymous)
        owner.weight = max(1, weight)
        if not owner.entries:
            owner.start = max(self._now[is_anonymous], owner.end)
        entry = self._entries[item] = _Entry(item, owner, order, cost)
        insort(owner.entries, entry, key=attrgetter("order"))
        self._first = None

    def head(self) -> Item | None:
        return self._next().item if self._entries else None

    def take(self) -> Item:
        """Removes and returns the next item, at its account's cost. There must be one."""
        entry = self._next()
        account = entry.account
        self._now[account.is_anonymous] = account.start
        account.end = account.start + max(1, entry.cost * WEIGHT_UNIT // account.weight)
        account.start = account.end
        self.remove(entry.item)
        return entry.item

    def remove(self, item: Item) -> None:
        """Removes an item of the queue without charging its account."""
        entry = self._entries.pop(item)
        entry.account.entries.remove(entry)
        self._first = None
        if not self._entries:
            self._now = {False: 0, True: 0}
            self._accounts.clear()
        elif len(self._accounts) > self._sweep_at:
            self._forget_idle()

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        owned = [entry for account in self._accounts.values() for entry in account.entries]
        if {entry.item: entry for entry in owned} != self._entries or len(owned) != len(self):
            raise IntegrityError("an item belongs to no account, or to two")
        for account in self._accounts.values():
            orders = [entry.order for entry in account.entries]
            if orders != sorted(orders):
                raise IntegrityError("an account's items are not in order")
            if orders and account.start < self._now[account.is_anonymous]:
                raise IntegrityError("an account's turn is over and it was not taken")

    def _next(self) -> _Entry[Item]:
        if self._first is None:
            waiting = (account for account in self._accounts.values() if account.entries)
            self._first = min(waiting, key=attrgetter("rank")).entries[0]
        return self._first

    def _forget_idle(self) -> None:
        """Forgets the accounts that would start now if they came back."""
        self._accounts = {
            key: account
            for key, account in self._accounts.items()
            if account.entries or account.end > self._now[account.is_anonymous]
        }
        self._sweep_at = 2 * len(self._accounts) + SWEEP_BEYOND
