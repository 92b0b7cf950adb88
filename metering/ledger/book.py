"""The arithmetic of hard caps: each operation's effect on budgets and their reservations.

    Reserve   reserved += worst case      on every budget of the request, or on none
    Narrow    reserved -= the excess
    Settle    reserved -= held,  spent += used
    Release   reserved -= held

    spent + reserved <= cap, always       (until an operator lowers the cap)

Pure: states in, states out; no clock, no database. ``metering.ledger.store`` reads the states,
applies a batch of operations and writes what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from metering.errors import QuotaExceededError
from metering.ledger.entries import Granted, Narrow, Reserve, Settle
from metering.money import DearestPrices, Metered, Prices, amount_words

DAY_S = 86_400


class Window(StrEnum):
    """In UTC.

    balance   ────────────────────────────▶   one window without an end
    day       |────────|────────|────────|    from midnight to midnight
    month     |──────────────|───────────|    from the first of a month to the next
    seconds      |─────|       |─────|        opens with a reservation; closed in between
    """

    BALANCE = "balance"
    DAY = "day"
    MONTH = "month"
    SECONDS = "seconds"


def calendar_end_s(window: Window, now_s: int) -> int:
    """For days and months only."""
    if window is Window.DAY:
        return (now_s // DAY_S + 1) * DAY_S
    first = _month_of(now_s)
    year, month = (first.year + 1, 1) if first.month == 12 else (first.year, first.month + 1)
    return int(first.replace(year=year, month=month).timestamp())


def start_s(window: Window, window_s: int | None, ends_s: int) -> int:
    if window is Window.DAY:
        return ends_s - DAY_S
    if window is Window.MONTH:
        return int(_month_of(ends_s - 1).timestamp())
    return ends_s - (window_s or 0)


def _month_of(unix_s: int) -> datetime:
    now = datetime.fromtimestamp(unix_s, UTC)
    return datetime(now.year, now.month, 1, tzinfo=UTC)


RETRY_AFTER_RESERVED_S = 1.0
"""Reservations of running requests settle, and free their unused part."""
MIN_ANSWER_TOKENS = 256
"""Granted where the client named no number, though others' reservations leave less."""


class Unit(StrEnum):
    TOKENS = "tokens"
    MICRO_USD = "micro_usd"


@dataclass(slots=True, kw_only=True)
class BudgetState:
    """``window_ends_s``: ``None`` for a balance, an unused calendar window, and closed seconds."""

    id: int
    owner: str
    unit: Unit
    cap: int
    window: Window = Window.BALANCE
    window_s: int | None = None
    spent: int = 0
    reserved: int = 0
    window_ends_s: int | None = None

    @property
    def left(self) -> int:
        return max(0, self.cap - self.spent - self.reserved)

    @property
    def unspent(self) -> int:
        """The amount left if all reservations settle unused."""
        return max(0, self.cap - self.spent)

    def worst_case(
        self, prices: Prices | DearestPrices, prompt_tokens: int, output_tokens: int
    ) -> int:
        if self.unit is Unit.TOKENS:
            return prompt_tokens + output_tokens
        return prices.most_micro_usd(prompt_tokens=prompt_tokens, completion_tokens=output_tokens)

    def metered(self, metered: Metered) -> int:
        """The part of the use that is no tokens: no budget of tokens counts it."""
        return 0 if self.unit is Unit.TOKENS else metered.micro_usd

    def affordable_output_tokens(
        self, prices: Prices | DearestPrices, prompt_tokens: int, *, amount: int
    ) -> int | None:
        if self.unit is Unit.TOKENS:
            return amount - prompt_tokens
        return prices.affordable_output_tokens(micro_usd=amount, prompt_tokens=prompt_tokens)

    def used(self, settle: Settle) -> int:
        if self.unit is Unit.TOKENS:
            return max(0, settle.prompt_tokens + settle.completion_tokens)
        return max(0, settle.cost_micro_usd)

    def roll(self, now_s: int) -> bool:
        """Returns whether that changed anything. Reservations stay: their requests are running.
        Never goes back: gateways' clocks differ."""
        if self.window is Window.BALANCE:
            return False
        if self.window_ends_s is not None and now_s < self.window_ends_s:
            return False
        before = (self.spent, self.window_ends_s)
        self.spent = 0
        is_calendar = self.window is not Window.SECONDS
        self.window_ends_s = calendar_end_s(self.window, now_s) if is_calendar else None
        return before != (self.spent, self.window_ends_s)

    def holds(self, unix_s: int) -> bool:
        if self.window is Window.BALANCE:
            return True
        if self.window_ends_s is None:
            return False
        return unix_s >= start_s(self.window, self.window_s, self.window_ends_s)


@dataclass(slots=True)
class Book:
    """Mutates both. ``held``: by request and budget. A missing budget was deleted."""

    budgets: dict[int, BudgetState]
    held: dict[str, dict[int, int]]
    changed: set[int] = field(default_factory=set)

    def reserve(self, reserve: Reserve) -> Granted:
        """Replaces the reservation of a first one whose commit was not seen. Raises
        ``QuotaExceededError``."""
        self.release(reserve.request_id)
        now_s = int(reserve.now_unix_s)
        budgets = [self.budgets[id] for id in reserve.budgets if id in self.budgets]
        for budget in budgets:
            if budget.roll(now_s):
                self.changed.add(budget.id)
        granted = output_tokens_granted(reserve, budgets)
        amounts = [
            budget.worst_case(reserve.prices, reserve.prompt_tokens, granted)
            + budget.metered(reserve.metered)
            for budget in budgets
        ]
        short = [
            (budget, amount)
            for budget, amount in zip(budgets, amounts, strict=True)
            if amount > budget.left
        ]
        if short:
            raise _refusal(reserve, granted, short)
        for budget, amount in zip(budgets, amounts, strict=True):
            if budget.window is Window.SECONDS and budget.window_ends_s is None:
                budget.window_ends_s = now_s + (budget.window_s or 0)
            budget.reserved += amount
            self.changed.add(budget.id)
        if budgets:
            held = zip((budget.id for budget in budgets), amounts, strict=True)
            self.held[reserve.request_id] = dict(held)
        return Granted(output_tokens=granted)

    def narrow(self, narrow: Narrow) -> None:
        held = self.held.get(narrow.request_id, {})
        for budget_id, amount in held.items():
            budget = self.budgets[budget_id]
            needed = budget.worst_case(narrow.prices, narrow.prompt_tokens, narrow.output_tokens)
            if needed < amount:
                held[budget_id] = needed
                self._unreserve(budget, amount - needed)

    def settle(self, settle: Settle) -> bool:
        """Returns whether the charge was cut. A budget is charged no more than was reserved on it,
        whatever a neuron reports, so that its cap holds; where the reservation was swept, no more
        than is left."""
        ended_s = int(settle.ended_unix_s)
        is_cut = False
        held = self.held.pop(settle.request_id, {})
        for budget_id in dict.fromkeys((*held, *settle.budgets)):
            if (budget := self.budgets.get(budget_id)) is None:
                continue
            if budget_id in held:
                amount = held[budget_id]
                self._unreserve(budget, amount)
                budget.roll(ended_s)
            else:
                budget.roll(ended_s)
                amount = max(0, budget.left)
                self.changed.add(budget_id)
            used = budget.used(settle)
            is_cut = is_cut or used > amount
            if budget.holds(ended_s):
                budget.spent += min(used, amount)
        return is_cut

    def release(self, request_id: str) -> None:
        for budget_id, amount in self.held.pop(request_id, {}).items():
            self._unreserve(self.budgets[budget_id], amount)

    def _unreserve(self, budget: BudgetState, amount: int) -> None:
        budget.reserved -= amount
        self.changed.add(budget.id)


def output_tokens_granted(reserve: Reserve, budgets: Sequence[BudgetState] = ()) -> int:
    """The client's number, else as many as the budgets still buy, the same for each choice. While
    reservations leave less than ``MIN_ANSWER_TOKENS``, it is that many: an answer is not cut short
    only because other requests run."""
    if reserve.output_tokens is not None:
        return reserve.output_tokens
    now = _affordable(reserve, [(budget, budget.left) for budget in budgets])
    later = _affordable(reserve, [(budget, budget.unspent) for budget in budgets])
    per_choice = max(now, min(later, MIN_ANSWER_TOKENS), 1)
    return per_choice * reserve.num_choices


def _affordable(reserve: Reserve, amounts: Sequence[tuple[BudgetState, int]]) -> int:
    most = reserve.default_output_tokens
    for budget, amount in amounts:
        affordable = budget.affordable_output_tokens(
            reserve.prices, reserve.prompt_tokens, amount=amount
        )
        if affordable is not None:
            most = min(most, affordable)
    return most // reserve.num_choices


def _refusal(
    reserve: Reserve, output_tokens: int, short: list[tuple[BudgetState, int]]
) -> QuotaExceededError:

    def longest(candidate: tuple[BudgetState, int]) -> float:
        retry_after_s = _retry_after_s(*candidate, reserve.now_unix_s)
        return float("inf") if retry_after_s is None else retry_after_s

    budget, needed = max(short, key=longest)
    reserved = amount_words(budget.unit, budget.reserved)
    under_way = f" while {reserved} are reserved by running requests" if budget.reserved else ""
    # The prompt's length is known once a neuron has tokenized it: this is its bound.
    return QuotaExceededError(
        f"This request may need up to {amount_words(budget.unit, needed)} (at most "
        f"{_most_words(reserve, output_tokens)}), and "
        f"{amount_words(budget.unit, budget.left)} are left of the {budget.owner}'s budget of "
        f"{amount_words(budget.unit, budget.cap)}{_per_window(budget)}{under_way}.",
        budget=budget.id,
        unit=budget.unit,
        needed=needed,
        left=budget.left,
        retry_after_s=_retry_after_s(budget, needed, reserve.now_unix_s),
        is_reserved=needed <= budget.unspent,
        owner=budget.owner,
    )


def _most_words(reserve: Reserve, output_tokens: int) -> str:
    metered = reserve.metered
    if not metered.unit:
        return f"{reserve.prompt_tokens:,} tokens of prompt, and {output_tokens:,} of output"
    return f"{metered.num_units:,} {metered.unit}{'' if metered.num_units == 1 else 's'}"


def _retry_after_s(budget: BudgetState, needed: int, now_unix_s: float) -> float | None:
    if needed <= budget.unspent:
        return RETRY_AFTER_RESERVED_S
    if budget.window is Window.BALANCE or needed > budget.cap:
        return None
    if budget.window_ends_s is None:
        return RETRY_AFTER_RESERVED_S
    return max(1.0, budget.window_ends_s - now_unix_s)


def _per_window(budget: BudgetState) -> str:
    if budget.window is Window.SECONDS:
        return f" per {budget.window_s:,} seconds"
    return "" if budget.window is Window.BALANCE else f" per {budget.window}"
