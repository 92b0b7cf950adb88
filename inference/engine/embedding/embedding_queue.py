"""Batches inputs of requests for the next forward of an embedding model. Plain Python over ints: no
tensors, no clock, no knowledge of models.

Accounts take turns by weighted fair queueing over the tokens they received, and so do the jobs of
one account; anonymous callers' jobs come last. The batch begins with the next job's longest open
input; inputs of about that length from any job join it, as long as the padded batch stays within
the step's tokens:

    turn order   job A | job B | job C        longest of A: 200 tokens
    the batch    A 200, C 190, A 180, B 120   (rows * 200 <= max_tokens; none shorter than 100)

So a large request holds up a small one for one round at most, and little is padding.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from inference.engine.scheduling.waiting_queue import QueueLimits
from inference.protocol.engine import EmbedSequences

MAX_QUEUED_TOKENS = 2**24
"""The most tokens of all queued jobs, at four bytes each; one job alone may have more."""
TOKEN_UNIT = 1 << 16
"""Tokens count this much, so that their quotient by a weight may be an integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLimits(QueueLimits):
    max_started: int = 256
    """The most jobs of which some inputs are done and some are not."""


class EmbeddingJob:
    """One request's inputs. ``open_inputs`` are (number of tokens, index), shortest first."""

    def __init__(self, command: EmbedSequences, *, deadline_s: float) -> None:
        self.sequence_id = command.sequence_id
        self.account = command.account
        self.weight = max(1, command.weight)
        self.is_anonymous = command.is_anonymous
        self.dimensions = command.dimensions
        self.prompts = [array("i", prompt) for prompt in command.prompts]
        self.open_inputs = sorted((len(p), index) for index, p in enumerate(self.prompts))
        self.vectors: dict[int, bytes] = {}
        self.deadline_s: float | None = deadline_s
        """The time by which it must have started. ``None`` once it has."""

    @property
    def has_started(self) -> bool:
        return self.deadline_s is None

    @property
    def is_done(self) -> bool:
        return len(self.vectors) == len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_computed_tokens(self) -> int:
        return sum(len(self.prompts[index]) for index in self.vectors)


@dataclass(frozen=True, slots=True)
class Row:
    job: EmbeddingJob
    index: int

    @property
    def token_ids(self) -> array[int]:
        return self.job.prompts[self.index]


class EmbeddingQueue:
    def __init__(self, limits: EmbeddingLimits) -> None:
        self.limits = limits
        self._jobs: deque[EmbeddingJob] = deque()
        """The jobs of one account are in the order of their turns."""
        self._num_tokens = 0
        self._now = 0
        self._given: dict[str, int] = {}
        """The virtual time until which each account has been served: see ``FairQueue``."""

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_started(self) -> int:
        return sum(job.has_started for job in self._jobs)

    @property
    def num_waiting(self) -> int:
        return len(self._jobs) - self.num_started

    def has_room(self, num_tokens: int) -> bool:
        if self._jobs and self._num_tokens + num_tokens > MAX_QUEUED_TOKENS:
            return False
        return self.num_waiting < self.limits.max_queue_depth

    def is_full_for(self, account: str) -> bool:
        num_waiting = sum(not job.has_started for job in self._jobs if job.account == account)
        num_free_slots = self.limits.max_started - self.num_started
        return num_waiting - num_free_slots >= self.limits.max_queue_depth_per_account

    def add(self, job: EmbeddingJob) -> None:
        self._jobs.append(job)
        self._num_tokens += job.num_tokens

    def remove(self, job: EmbeddingJob) -> None:
        self._jobs.remove(job)
        self._num_tokens -= job.num_tokens
        if not self._jobs:
            self._given.clear()

    def overdue(self, now_s: float) -> list[EmbeddingJob]:
        return [one for one in self._jobs if one.deadline_s is not None and one.deadline_s <= now_s]

    def take_batch(self, max_tokens: int) -> list[Row]:
        """Takes the next forward's rows, longest first, at least one if any job has an open input.
        Their jobs have started then."""
        runnable = self._runnable()
        if not runnable:
            return []
        first = runnable[0]
        longest = first.open_inputs[-1][0]
        near = [_downwards(job, longest) for job in runnable]
        by_length = heapq.merge(*near, key=lambda row: -len(row.token_ids))
        rows = list(islice(by_length, max(1, max_tokens // longest)))
        for row in rows:
            entry = (len(row.token_ids), row.index)
            del row.job.open_inputs[bisect_left(row.job.open_inputs, entry)]
            row.job.deadline_s = None
        self._charge(first, rows)
        self._jobs.remove(first)
        self._jobs.append(first)
        return rows

    def _runnable(self) -> list[EmbeddingJob]:
        """Jobs in fair order: those that have started, and new ones while slots are free."""
        num_free_slots = self.limits.max_started - self.num_started
        runnable = []
        for job in self._in_turns():
            if not job.has_started:
                if num_free_slots <= 0:
                    continue
                num_free_slots -= 1
            if job.open_inputs:
                runnable.append(job)
        return runnable

    def _in_turns(self) -> Iterator[EmbeddingJob]:
        """Yields each account's first job, then each account's second …"""
        jobs_of: dict[tuple[bool, str], list[EmbeddingJob]] = {}
        for job in self._jobs:
            jobs_of.setdefault((job.is_anonymous, job.account), []).append(job)
        callers = sorted(jobs_of, key=lambda caller: self._start_of(caller[1]))
        for is_anonymous in (False, True):
            theirs = [jobs_of[caller] for caller in callers if caller[0] is is_anonymous]
            for one_of_each in zip_longest(*theirs):
                yield from (job for job in one_of_each if job is not None)

    def _start_of(self, account: str) -> int:
        return max(self._now, self._given.get(account, 0))

    def _charge(self, first: EmbeddingJob, rows: list[Row]) -> None:
        """Advances the clock to ``first``'s turn; each account pays for its own rows."""
        self._now = self._start_of(first.account)
        for row in rows:
            account = row.job.account
            cost = len(row.token_ids) * TOKEN_UNIT // row.job.weight
            self._given[account] = self._start_of(account) + cost


def _downwards(job: EmbeddingJob, longest: int) -> Iterator[Row]:
    """Yields open inputs from ``longest`` tokens down to half of them, longest first."""
    end = bisect_right(job.open_inputs, longest, key=lambda entry: entry[0])
    for position in range(end - 1, -1, -1):
        length, index = job.open_inputs[position]
        if 2 * length < longest:
            return
        yield Row(job, index)
