"""What became of requests, for the case that their gateway dies before it has settled them.

    request ends ─▶ kept for two minutes ──its gateway dies─▶ due ─▶ Redis stream helexa:accounts
                        request of a dead gateway ends ───────▲

What is due is sent with every heartbeat until Redis has taken it; one sent twice is settled once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque

import redis

from inference.neuron.live_request import LiveRequest
from inference.protocol.accounts import (
    ACCOUNT_FIELD,
    RequestAccount,
    RequestEnd,
    encode_request_account,
)
from inference.protocol.events import Cancelled, Embedded, Event, Failed, Finished
from inference.protocol.keys import ACCOUNTS, ACCOUNTS_MAX_ENTRIES

log = logging.getLogger(__name__)

KEPT_S = 120.0
"""After its end. A gateway that has not settled a request by then died long ago."""
MAX_KEPT = 65_536
"""Some 30 MB. Beyond that the oldest are forgotten early."""
MAX_DUE = 65_536
ACCOUNTS_PER_SEND = 512


class AccountBook:
    """Any thread may call; nothing blocks. Knows no Redis; times are arguments."""

    def __init__(self, neuron: str) -> None:
        self._neuron = neuron
        self._lock = threading.Lock()
        self._kept: deque[RequestAccount] = deque()
        """In the order of their ends."""
        self._num_kept: Counter[str] = Counter()
        """How many accounts are kept for each gateway."""
        self._due: deque[RequestAccount] = deque()

    def record(self, live: LiveRequest, end: Event, *, now_unix_s: float) -> None:
        """``live`` has ended with ``end``. Due at once where its gateway cannot be told."""
        account = self._account(live, end, now_unix_s)
        with self._lock:
            if live.is_orphan:
                self._add_due(account)
                return
            self._kept.append(account)
            self._num_kept[account.gateway_id] += 1
            while self._kept and (
                len(self._kept) > MAX_KEPT or self._kept[0].ended_unix_s < now_unix_s - KEPT_S
            ):
                self._forget(self._kept.popleft())

    def gateway_ids(self) -> set[str]:
        """Whose requests have ended not long ago."""
        with self._lock:
            return set(self._num_kept)

    def gateway_died(self, gateway_id: str, *, now_unix_s: float) -> int:
        """What is kept of its requests is due. How many."""
        with self._lock:
            theirs = [a for a in self._kept if a.gateway_id == gateway_id]
            if theirs:
                self._kept = deque(a for a in self._kept if a.gateway_id != gateway_id)
                del self._num_kept[gateway_id]
            recent = [a for a in theirs if a.ended_unix_s >= now_unix_s - KEPT_S]
            for account in recent:
                self._add_due(account)
            return len(recent)

    def take_due(self, most: int) -> list[RequestAccount]:
        with self._lock:
            return [self._due.popleft() for _ in range(min(most, len(self._due)))]

    def put_back(self, accounts: list[RequestAccount]) -> None:
        """They were taken and could not be sent."""
        with self._lock:
            self._due.extendleft(reversed(accounts))

    def _account(self, live: LiveRequest, end: Event, now_unix_s: float) -> RequestAccount:
        submit = live.submit
        outcome: RequestEnd = "finished"
        code = usage = first_token_s = None
        match end:
            case Failed(failure=failure):
                outcome, code, usage = "failed", failure.code, end.usage
            case Cancelled():
                outcome, usage = "cancelled", end.usage
            case Finished() | Embedded():
                usage = end.usage
        if live.first_token_unix_s is not None:
            first_token_s = live.first_token_unix_s - live.started_unix_s
        return RequestAccount(
            request_id=submit.request_id,
            gateway_id=submit.gateway_id,
            account=submit.account,
            key=submit.key,
            model=submit.model,
            neuron=self._neuron,
            endpoint=submit.endpoint,
            usage=usage,
            outcome=outcome,
            started_unix_s=live.started_unix_s,
            ended_unix_s=now_unix_s,
            receipt=submit.receipt,
            code=code,
            time_to_first_token_s=first_token_s,
        )

    def _add_due(self, account: RequestAccount) -> None:
        self._due.append(account)
        if len(self._due) > MAX_DUE:
            lost = self._due.popleft()
            log.error("request %s: nobody took its account; it is lost", lost.request_id)

    def _forget(self, account: RequestAccount) -> None:
        self._num_kept[account.gateway_id] -= 1
        if self._num_kept[account.gateway_id] == 0:
            del self._num_kept[account.gateway_id]


def send_due(book: AccountBook, client: redis.Redis) -> int:
    """Write what is due to the stream; how many were. Raises ``redis.RedisError``: then they stay
    due."""
    num_sent = 0
    while accounts := book.take_due(ACCOUNTS_PER_SEND):
        pipeline = client.pipeline(transaction=False)
        for account in accounts:
            pipeline.xadd(
                ACCOUNTS,
                {ACCOUNT_FIELD: encode_request_account(account)},
                maxlen=ACCOUNTS_MAX_ENTRIES,
                approximate=True,
            )
        try:
            pipeline.execute()
        except redis.RedisError:
            book.put_back(accounts)
            raise
        num_sent += len(accounts)
    return num_sent
