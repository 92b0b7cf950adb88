"""Sequences whose grammar is being compiled in another thread. Knows no llguidance and no tensors;
the compiled grammar goes to the sequence, which is held until then."""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Protocol

from inference.engine.errors import GrammarError
from inference.engine.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from inference.engine.sampling.grammars import CompiledGrammar

log = logging.getLogger(__name__)


class GrammarSource(Protocol):
    def compile(self, text: str) -> Future[CompiledGrammar]:
        """Does not wait. The future raises ``GrammarError``."""
        ...


class PendingGrammars:
    """For the engine's thread. ``source`` ``None``: this engine has no grammars."""

    def __init__(self, source: GrammarSource | None) -> None:
        self._source = source
        self._pending: dict[str, tuple[Sequence, Future[CompiledGrammar]]] = {}

    def add(self, sequence: Sequence) -> None:
        """Start compiling, where the sequence has a grammar."""
        if (grammar := sequence.params.grammar) is not None:
            future = _no_grammars() if self._source is None else self._source.compile(grammar.text)
            self._pending[sequence.sequence_id] = sequence, future

    def forget(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended: what becomes of its grammar is of no interest."""
        self._pending.pop(sequence.sequence_id, None)

    def wait(self, timeout_s: float) -> None:
        """Waits until a grammar is compiled, or the time is over."""
        if self._pending:
            wait([future for _, future in self._pending.values()], timeout_s, FIRST_COMPLETED)

    def take_done(self) -> list[tuple[Sequence, str]]:
        """Give sequences their compiled grammars. Returns those whose does not compile, and why in
        words for the client."""
        if not self._pending:
            return []
        refused = []
        for sequence, future in [p for p in self._pending.values() if p[1].done()]:
            del self._pending[sequence.sequence_id]
            if (problem := _problem(sequence, future)) is not None:
                refused.append((sequence, problem))
                continue
            assert sequence.params.grammar is not None
            sequence.grammar = future.result().start(sequence.params.grammar)
        return refused


def _problem(sequence: Sequence, future: Future[CompiledGrammar]) -> str | None:
    error = future.exception()
    if error is None or isinstance(error, GrammarError):
        return None if error is None else str(error)
    log.error("%s: its grammar broke the compiler", sequence.sequence_id, exc_info=error)
    return "the grammar cannot be compiled"


def _no_grammars() -> Future[CompiledGrammar]:
    future: Future[CompiledGrammar] = Future()
    future.set_exception(GrammarError("this engine has no grammars"))
    return future
