"""Sequences whose grammar is being compiled in another thread. Knows no llguidance and no tensors;
the compiled grammar goes to the sequence, which is held until then."""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Protocol

from inference.engine.errors import GrammarError
from inference.engine.scheduling.sequence import Sequence
from inference.protocol.sampling import Grammar

if TYPE_CHECKING:
    from inference.engine.sampling.grammars import CompiledGrammar

log = logging.getLogger(__name__)


class GrammarSource(Protocol):
    def compile(self, text: str) -> Future[CompiledGrammar]:
        """Does not wait. The future raises ``GrammarError``."""
        ...


class PendingGrammars:
    """The grammars being compiled, and the sequences that wait for them. Belongs to the engine's
    thread. ``source`` is ``None`` for an engine without grammars."""

    def __init__(self, source: GrammarSource | None) -> None:
        self._source = source
        self.pending: dict[str, tuple[Sequence, Future[CompiledGrammar]]] = {}

    def add(self, sequence: Sequence, grammar: Grammar) -> None:
        """Start compiling the sequence's grammar."""
        future = _no_grammars() if self._source is None else self._source.compile(grammar.text)
        self.pending[sequence.sequence_id] = sequence, future

    def forget(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended: what becomes of its grammar is of no interest."""
        self.pending.pop(sequence.sequence_id, None)

    def wait(self, timeout_s: float) -> None:
        """Waits until a grammar is compiled, or the time is over."""
        if self.pending:
            wait([future for _, future in self.pending.values()], timeout_s, FIRST_COMPLETED)

    def take_done(self) -> list[tuple[Sequence, str]]:
        """Give sequences their compiled grammars. Returns those whose does not compile, and why in
        words for the client."""
        refused = []
        for sequence, future in [p for p in self.pending.values() if p[1].done()]:
            del self.pending[sequence.sequence_id]
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
