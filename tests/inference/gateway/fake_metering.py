"""Keys and a ledger in memory, for tests of a gateway without its database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inference.gateway.request.outcome import RequestOutcome
from metering.api_keys import AccountRecord, prefix_of
from metering.errors import (
    DirectoryUnavailableError,
    InvalidKeyError,
    KeyRefusedError,
    LedgerUnavailableError,
    QuotaExceededError,
)
from metering.ledger.entries import Granted, Narrow, Release, Reserve, Settle
from metering.ledger.spool import Tokens
from metering.principal import ALL_SCOPES, ANONYMOUS_ACCOUNT, Principal, Scope
from metering.request_records import RecordQueue

KEY = "hx-abcdefghij-" + 32 * "s"
OTHERS_KEY = "hx-klmnopqrst-" + 32 * "s"
NARROW_KEY = "hx-narrowkey0-" + 32 * "s"
"""May read usage, and nothing else."""


class FakeDirectory:
    """``is_away``: the database is, and no key is remembered."""

    def __init__(self) -> None:
        self.is_away = False
        self.keys = {
            KEY: Principal(account="lab", key=KEY[:13]),
            OTHERS_KEY: Principal(account="other", key=OTHERS_KEY[:13]),
            NARROW_KEY: Principal(
                account="lab", key=NARROW_KEY[:13], scopes=frozenset({Scope.USAGE_READ})
            ),
        }
        self.refused: dict[str, KeyRefusedError] = {}
        """Keys that were good once."""
        self.budgets: tuple[int, ...] = ()
        """The budgets of anonymous callers."""
        self.num_asked_again = 0
        """How often a key was looked up by its prefix."""

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def find(self, presented_key: str) -> Principal:
        if presented_key in self.refused:
            raise self.refused[presented_key]
        if self.is_away:
            raise DirectoryUnavailableError("The database does not answer.")
        if presented_key not in self.keys:
            raise InvalidKeyError("The API key is not valid.")
        return self.keys[presented_key]

    def prefix_of(self, presented_key: str) -> str | None:
        return prefix_of(presented_key)

    async def find_by_prefix(self, prefix: str) -> Principal:
        self.num_asked_again += 1
        for principal in self.keys.values():
            if principal.key == prefix:
                return principal
        raise InvalidKeyError("The API key is not valid.")

    def restrict(self, key: str, **changes: object) -> None:
        self.keys[key] = replace(self.keys[key], **changes)  # type: ignore[arg-type]

    def anonymous(self) -> Principal:
        return AccountRecord(name=ANONYMOUS_ACCOUNT, budgets=self.budgets).principal()

    def shared(self) -> Principal:
        return Principal(account="shared", scopes=ALL_SCOPES)


class FakeLedger:
    """One budget in tokens for all callers, with the recorded calls."""

    def __init__(self) -> None:
        self.cap_tokens = 1_000_000
        self.cap_micro_usd = 1_000_000
        """The cap of requests without tokens."""
        self.is_away = False
        self.is_full = False
        self.depth = 3
        self.age_s = 0.5
        self.num_spooled = 2
        self.spool_problem: str | None = None
        self.held: dict[str, int] = {}
        self.narrowed: list[Narrow] = []
        self.settled: list[Settle] = []
        self.begun: list[Settle] = []
        self.counted: dict[str, Callable[[], Tokens]] = {}
        """What each request has used so far."""
        self.released: list[Release] = []
        self.records = RecordQueue()
        self.recorded: list[RequestOutcome] = []
        self.is_closed = False
        self.reserved: list[Reserve] = []

    def start(self) -> None:
        pass

    async def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        self.is_closed = True

    def record(self, outcome: RequestOutcome) -> None:
        assert not self.is_closed, "it is never written"
        self.recorded.append(outcome)

    @property
    def left(self) -> int:
        spent = sum(entry.prompt_tokens + entry.completion_tokens for entry in self.settled)
        return self.cap_tokens - spent - sum(self.held.values())

    async def reserve(self, reserve: Reserve) -> Granted:
        if self.is_away:
            raise LedgerUnavailableError("The database does not answer.")
        self.reserved.append(reserve)
        self.held.pop(reserve.request_id, None)
        money = reserve.metered.micro_usd
        money_left = self.cap_micro_usd - sum(one.metered.micro_usd for one in self.settled)
        if money > money_left:
            raise _refusal("micro_usd", needed=money, left=money_left, is_reserved=False)
        left = self.left - reserve.prompt_tokens
        output = reserve.output_tokens
        if output is None:
            output = min(reserve.default_output_tokens, left)
        if output > left or left < reserve.num_choices:
            least = reserve.prompt_tokens + max(output, reserve.num_choices)
            is_reserved = least <= self.left + sum(self.held.values())
            needed = reserve.prompt_tokens + output
            raise _refusal("tokens", needed=needed, left=self.left, is_reserved=is_reserved)
        self.held[reserve.request_id] = reserve.prompt_tokens + output
        return Granted(output_tokens=output)

    def narrow(self, narrow: Narrow) -> None:
        self.narrowed.append(narrow)
        self.held[narrow.request_id] = narrow.prompt_tokens + narrow.output_tokens

    def begin(self, settle: Settle, tokens: Callable[[], Tokens]) -> None:
        self.begun.append(settle)
        self.counted[settle.request_id] = tokens

    def settle(self, settle: Settle) -> None:
        self.settled.append(settle)
        self.held.pop(settle.request_id, None)

    def release(self, release: Release) -> None:
        self.released.append(release)
        self.held.pop(release.request_id, None)


def _refusal(unit: str, *, needed: int, left: int, is_reserved: bool) -> QuotaExceededError:
    return QuotaExceededError(
        f"This needs {needed} {unit}; {left} are left.",
        budget=1,
        unit=unit,
        needed=needed,
        left=left,
        retry_after_s=1.0 if is_reserved else None,
        is_reserved=is_reserved,
    )
