"""One sequence of a scripted engine: which token comes next, and whether its grammar allows it.

A script holds a model's text; sampling, penalties and biases have no part in it. The ends of
a sequence (stop ids, max_tokens, min_tokens), the thinking budget, the grammar and logprobs are as
in the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Literal

import tokenizers

from inference.engine.sampling.grammars import GrammarCompiler, GrammarState
from inference.engine.sampling.logits_processors import ThinkingBudget
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import Grammar, SamplingParams, ThinkingLimit, TokenLogprob
from tests.live.scripted.script import Rule

TOP_LOGPROB = -0.25
"""The log probability of the scripted token; each candidate after it is one less likely."""


class GrammarBrokenError(Exception):
    """The script writes what the request's grammar forbids: one of the two is wrong."""


class Performance:
    def __init__(
        self,
        submit: SubmitSequence,
        rule: Rule,
        tokenizer: tokenizers.Tokenizer,
        *,
        end_token_id: int,
        grammars: GrammarCompiler,
    ) -> None:
        """Raises ``GrammarError`` for a grammar that does not compile."""
        index = int(submit.sequence_id.rpartition("/")[2])
        answer = rule.choices[index % len(rule.choices)]
        token_ids = tokenizer.encode(answer, add_special_tokens=False).ids
        self._submit = submit
        self._rule = rule
        self._tokens = _planned(token_ids, rule, end_token_id, submit.params)
        self.num_output = 0
        """Tokens so far."""
        self._due_s = 0.0
        grammar = submit.params.grammar
        self._check = GrammarCheck(grammar, grammars, tokenizer) if grammar else None

    @property
    def is_queued(self) -> bool:
        """It holds no block yet."""
        return self._rule.holds == "queue"

    def is_due(self, now_s: float) -> bool:
        """Whether it may ``step`` now."""
        if self._rule.holds is not None or now_s < self._due_s:
            return False
        self._due_s = now_s + self._rule.token_s
        return True

    def step(self) -> SequenceStep:
        """Raises ``GrammarBrokenError``."""
        is_first = self.num_output == 0
        token_ids: list[int] = []
        reason: Literal["stop", "length"] | None = None
        while reason is None and len(token_ids) < self._rule.tokens_per_step:
            token_id = next(self._tokens)
            self.num_output += 1
            if token_id in self._submit.params.stop_token_ids:
                reason = "stop"
                if self._check is not None:
                    self._check.expect_complete()
                break
            if self._check is not None:
                self._check.take(token_id)
            token_ids.append(token_id)
            reason = self._length_reason()
        return SequenceStep(
            sequence_id=self._submit.sequence_id,
            token_ids=token_ids,
            logprobs=self._logprobs(token_ids),
            num_cached_tokens=0 if is_first else None,
            finish_reason=reason,
            num_output_tokens=self.num_output if reason else 0,
        )

    def _length_reason(self) -> Literal["length"] | None:
        return "length" if self.num_output == self._submit.params.max_tokens else None

    def _logprobs(self, token_ids: list[int]) -> list[TokenLogprob] | None:
        num_top = self._submit.params.top_logprobs
        if num_top is None:
            return None
        return [
            TokenLogprob(
                token_id,
                TOP_LOGPROB,
                [(max(token_id - rank, 0), TOP_LOGPROB - rank) for rank in range(num_top)],
            )
            for token_id in token_ids
        ]


class GrammarCheck:
    """What the engine's masks would have let through."""

    def __init__(
        self, grammar: Grammar, grammars: GrammarCompiler, tokenizer: tokenizers.Tokenizer
    ) -> None:
        """Raises ``GrammarError``."""
        self._state: GrammarState = grammars.compile(grammar.text).result().start(grammar)
        self._tokenizer = tokenizer
        self._taken: list[int] = []

    def take(self, token_id: int) -> None:
        self._state.advance(token_id)
        if self._state.problem is not None:
            raise GrammarBrokenError(
                f"after {self._written()!r} the grammar forbids "
                f"{self._tokenizer.id_to_token(token_id)!r}"
            )
        self._taken.append(token_id)

    def expect_complete(self) -> None:
        if self._state.is_active and not self._state.matcher.is_accepting():
            raise GrammarBrokenError(f"the grammar wants more after {self._written()!r}")

    def _written(self) -> str:
        written: str = self._tokenizer.decode(self._taken, skip_special_tokens=False)
        return written


def _planned(
    token_ids: list[int], rule: Rule, end_token_id: int, params: SamplingParams
) -> Iterator[int]:
    """Yields tokens without end: where the model's end token does not count, the answer starts
    over."""
    once = token_ids if rule.repeats else [*token_ids, end_token_id]
    tokens: Iterator[int] = chain.from_iterable(repeat(once))
    if params.thinking_limit is not None:
        tokens = _limited_thinking(tokens, params.thinking_limit)
    return _without_early_stops(tokens, params)


def _limited_thinking(tokens: Iterator[int], limit: ThinkingLimit) -> Iterator[int]:
    """Thoughts over the budget are lost: the model's own end of the block comes in their place."""
    budget = ThinkingBudget(limit)
    for token_id in tokens:
        if budget.forced_token is not None and token_id != limit.end_token_id:
            continue
        budget.advance(token_id)
        yield token_id


def _without_early_stops(tokens: Iterator[int], params: SamplingParams) -> Iterator[int]:
    num_given = 0
    for token_id in tokens:
        if token_id in params.stop_token_ids and num_given < params.min_tokens:
            continue
        num_given += 1
        yield token_id
