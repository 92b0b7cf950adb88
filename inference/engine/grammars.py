"""Grammars that an output must follow: compiled once, off the engine's thread, then followed token
by token.

    text ──compile, in a pool──▶ CompiledGrammar ──start, for each sequence──▶ GrammarState

Owns llguidance's view of the model's tokenizer. Knows no tensors: ``logits_processors`` has masks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from inference.engine.errors import GrammarError
from inference.engine.sequence import Sequence
from inference.protocol.engine import Grammar
from inference.recent_results import RecentResults
from inference.supervised_threads import SupervisedPool

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Words = npt.NDArray[np.int32]

MAX_COMPILED_BYTES = 32 * 1024 * 1024
COMPILED_BYTES = 160_000
COMPILED_BYTES_PER_CHARACTER = 60
"""llguidance's memory for one: measured on schemas of 500 to 30,000 characters."""
NUM_COMPILING = 2
"""Compiler threads: a slow grammar holds up one other, not all."""


class GrammarState:
    """It follows sampled tokens only, so that recomputing a preempted sequence leaves it alone. An
    exception of llguidance becomes its ``problem`` and fails its sequence alone: the others have
    followed their tokens, and must not follow them again."""

    def __init__(
        self, matcher: LLMatcher, end_ids: tuple[int, ...], starts_after: int | None
    ) -> None:
        self.matcher = matcher
        self.end_ids = end_ids
        """The model's end-of-sequence tokens, at least one: no others stand for an end."""
        self._starts_after = starts_after
        self._raised = False

    @property
    def is_active(self) -> bool:
        return self._starts_after is None

    @property
    def is_complete(self) -> bool:
        return self.is_active and self.problem is None and self.matcher.is_stopped()

    @property
    def problem(self) -> str | None:
        """It became too complex, a token broke it, or llguidance raised."""
        if self._raised:
            return "the grammar cannot be followed here"
        return first_line(self.matcher.get_error()) if self.matcher.is_error() else None

    def allows(self, token_id: int) -> bool:
        """``token_id`` is no end. Far cheaper than a mask, which covers every token."""
        if self._starts_after is not None:
            return True
        if token_id in self.end_ids:
            return False
        return self._ask(lambda: self.matcher.validate_tokens([token_id])) == 1

    def fill_mask(self, words: Words, row: int) -> None:
        """Sets no bits where there is a problem."""
        self._ask(lambda: fill_next_token_bitmask(self.matcher, words, row))
        if self._raised:
            words[row] = 0

    def advance(self, token_id: int) -> None:
        """``token_id`` is not the end."""
        if self._starts_after is None:
            self._ask(lambda: self.matcher.consume_token(token_id))
        elif token_id == self._starts_after:
            self._starts_after = None

    def _ask(self, ask: Callable[[], Answer]) -> Answer | None:
        if self._raised:
            return None
        try:
            return ask()
        except BaseException as error:
            is_panic = type(error).__name__ == "PanicException"  # of Rust: no Exception
            if not is_panic and not isinstance(error, Exception):
                raise
            log.exception("a grammar cannot be followed")
            self._raised = True
            return None


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    _matcher: LLMatcher
    _end_ids: tuple[int, ...]

    def start(self, grammar: Grammar) -> GrammarState:
        return GrammarState(self._matcher.deep_copy(), self._end_ids, grammar.starts_after_token_id)


class GrammarCompiler:
    """Reads the tokenizer.json in its pool at once. One thread at a time may use it."""

    def __init__(
        self, tokenizer_file: Path, vocab_size: int, end_token_ids: tuple[int, ...]
    ) -> None:
        self._pool = SupervisedPool(NUM_COMPILING, thread_name_prefix="grammar-compiler")
        self._read = partial(_read_tokenizer, tokenizer_file, vocab_size, end_token_ids)
        self._tokenizer: Future[LLTokenizer] | None = self._pool.submit(self._read)
        self._compiled: RecentResults[Future[CompiledGrammar]] = RecentResults(
            MAX_COMPILED_BYTES,
            lambda text, _: COMPILED_BYTES + COMPILED_BYTES_PER_CHARACTER * len(text),
        )

    def compile(self, text: str) -> Future[CompiledGrammar]:
        """Does not wait. The future raises ``GrammarError``, written for the client."""
        tokenizer = self._tokenizer_read()
        return self._compiled.get(text, lambda text: self._pool.submit(_compile, text, tokenizer))

    def wait_ready(self) -> str | None:
        """Blocks until the tokenizer is read. Returns why it cannot be used, if so."""
        error = self._tokenizer_read().exception()
        return None if error is None else str(error)

    def forget_tokenizer(self) -> None:
        """The first grammar reads it again, in 0.3 s. Its tables take 36 MiB for 49,152 tokens and
        100 MiB for 262,144, and most models never see a grammar."""
        self._tokenizer = None

    def _tokenizer_read(self) -> Future[LLTokenizer]:
        if self._tokenizer is None:
            self._tokenizer = self._pool.submit(self._read)
        return self._tokenizer


def _compile(text: str, reading: Future[LLTokenizer]) -> CompiledGrammar:
    tokenizer = reading.result()
    # Errors without the parser's state, which is of no use to a client.
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(first_line(matcher.get_error()))
    return CompiledGrammar(matcher, tuple(tokenizer.eos_tokens))


def first_line(message: str) -> str:
    """llguidance appends what it saw to its messages."""
    return message.split("\n", 1)[0]


def _read_tokenizer(
    tokenizer_file: Path, vocab_size: int, end_token_ids: tuple[int, ...]
) -> LLTokenizer:
    try:
        text = tokenizer_file.read_text(encoding="utf-8")
        # Without end tokens of the model's own llguidance takes those that the names suggest.
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(end_token_ids) or None)
    except (OSError, ValueError) as error:
        raise GrammarError(
            f"this model's tokenizer cannot be used with grammars: {first_line(str(error))}"
        ) from error


class PendingGrammars:
    """Belongs to the engine's thread."""

    def __init__(self, source: GrammarCompiler | None) -> None:
        self._source = source
        self.pending: dict[str, tuple[Sequence, Future[CompiledGrammar]]] = {}

    def add(self, sequence: Sequence, grammar: Grammar) -> None:
        assert self._source is not None, "a load has it"
        self.pending[sequence.sequence_id] = sequence, self._source.compile(grammar.text)

    def forget(self, sequence: Sequence) -> None:
        self.pending.pop(sequence.sequence_id, None)

    @property
    def futures(self) -> list[Future[CompiledGrammar]]:
        return [future for _, future in self.pending.values()]

    def take_done(self) -> list[tuple[Sequence, str]]:
        """Returns the sequences whose grammar does not compile, with a message for the client."""
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
