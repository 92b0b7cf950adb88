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

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from inference.engine.errors import IntegrityError

WEIGHT_UNIT = 1 << 16
"""The factor that keeps a cost divided by a weight whole, and large enough."""
SWEEP_BEYOND = 64
"""How much may be left behind before it is cleared away."""

Item = TypeVar("Item", bound=Hashable)


class FairQueue(Generic[Item]):
    """Adding, taking and removing cost O(log n)."""

    def __init__(self) -> None:
        self._known: _Turns[Item] = _Turns()
        self._anonymous: _Turns[Item] = _Turns()

    def __len__(self) -> int:
        return len(self._known) + len(self._anonymous)

    def __iter__(self) -> Iterator[Item]:
        """Yields the items in no particular order."""
        yield from self._known
        yield from self._anonymous

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
        queue = self._anonymous if is_anonymous else self._known
        queue.add(item, account, order, cost, weight)

    def head(self) -> Item | None:
        """The next one, which stays."""
        return self._known.head() or self._anonymous.head()

    def take(self) -> Item:
        """The next one, at its account's cost. There is one."""
        return (self._known or self._anonymous).take()

    def remove(self, item: Item) -> None:
        """Removes an item of the queue without charging its account."""
        (self._known if item in self._known else self._anonymous).remove(item)

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        self._known.check_integrity()
        self._anonymous.check_integrity()


class _Entry(Generic[Item]):
    __slots__ = ("account", "cost", "is_here", "item")

    def __init__(self, item: Item, account: _Account[Item], cost: int) -> None:
        self.item = item
        self.account = account
        self.cost = cost
        self.is_here = True
        """Removed ones stay in their heap until they come to its top."""


class _Account(Generic[Item]):
    __slots__ = ("end", "entries", "is_ranked", "name", "num_here", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1
        self.end = 0
        """The virtual time at which what it was given last ends."""
        self.entries: list[tuple[int, _Entry[Item]]] = []
        """A heap by order."""
        self.num_here = 0
        self.is_ranked = False

    def drop_removed(self) -> None:
        while self.entries and not self.entries[0][1].is_here:
            heappop(self.entries)
        if len(self.entries) > 2 * self.num_here + SWEEP_BEYOND:
            self.entries = [pair for pair in self.entries if pair[1].is_here]
            heapify(self.entries)


class _Turns(Generic[Item]):
    """One virtual clock and the accounts that share it."""

    def __init__(self) -> None:
        self._now = 0
        self._accounts: dict[str, _Account[Item]] = {}
        self._entries: dict[Item, _Entry[Item]] = {}
        self._ranked: list[tuple[int, int, _Account[Item]]] = []
        """A heap of (start, order, account), once for each account that has something here. One
        whose items were all removed stays until it comes to the top."""
        self._sweep_at = SWEEP_BEYOND
        """The number of accounts at which the idle ones are swept; they are kept for what they have
        to pay."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    def add(self, item: Item, name: str, order: int, cost: int, weight: int) -> None:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(name)
        account.weight = max(1, weight)
        entry = self._entries[item] = _Entry(item, account, cost)
        heappush(account.entries, (order, entry))
        account.num_here += 1
        if not account.is_ranked:
            self._rank(account, max(self._now, account.end))

    def head(self) -> Item | None:
        if not self._entries:
            return None
        account = self._first()
        return account.entries[0][1].item

    def take(self) -> Item:
        account = self._first()
        start, _, _ = heappop(self._ranked)
        account.is_ranked = False
        _, entry = heappop(account.entries)
        self._now = start
        account.end = start + max(1, entry.cost * WEIGHT_UNIT // account.weight)
        self._drop(entry)
        if account.num_here:
            self._rank(account, account.end)
        return entry.item

    def remove(self, item: Item) -> None:
        entry = self._entries[item]
        entry.is_here = False
        self._drop(entry)
        entry.account.drop_removed()

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        ranked = [account for _, _, account in self._ranked]
        if len(ranked) != len(set(ranked)):
            raise IntegrityError("an account has two turns")
        for account in self._accounts.values():
            here = [entry.item for _, entry in account.entries if entry.is_here]
            if len(here) != account.num_here:
                raise IntegrityError("an account's items are not all counted")
            if here and account not in ranked:
                raise IntegrityError("an account with items has no turn")
        if sum(account.num_here for account in self._accounts.values()) != len(self._entries):
            raise IntegrityError("an item belongs to no account")
        if any(start < self._now for start, _, account in self._ranked if account.num_here):
            raise IntegrityError("an account's turn is over and it was not taken")

    def _rank(self, account: _Account[Item], start: int) -> None:
        account.drop_removed()
        order, _ = account.entries[0]
        account.is_ranked = True
        heappush(self._ranked, (start, order, account))

    def _first(self) -> _Account[Item]:
        """The account whose turn it is, with something at its head."""
        while True:
            account = self._ranked[0][2]
            account.drop_removed()
            if account.num_here:
                return account
            heappop(self._ranked)
            account.is_ranked = False

    def _drop(self, entry: _Entry[Item]) -> None:
        del self._entries[entry.item]
        entry.account.num_here -= 1
        if not self._entries:
            self._now = 0
            self._accounts.clear()
            self._ranked.clear()
        elif len(self._accounts) > self._sweep_at:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Accounts that would start now if they came back."""
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.is_ranked or account.num_here or account.end > self._now
        }
        self._sweep_at = 2 * len(self._accounts) + SWEEP_BEYOND
