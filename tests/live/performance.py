"""One sequence of a scripted engine: which token comes next, and whether its grammar allows it.

A script says what a model would write; sampling, penalties and biases have no part in it. What ends
a sequence (stop ids, max_tokens, min_tokens), the thinking limit and logprobs are as in the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Literal

import llguidance
import tokenizers

from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import Grammar, SamplingParams, ThinkingLimit, TokenLogprob
from tests.live.script import Rule

TOP_LOGPROB = -0.25
"""Of the scripted token; each candidate after it is one less likely."""


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
        num_cached_tokens: int,
        grammar_tokens: llguidance.LLTokenizer,
    ) -> None:
        """Raises ``GrammarBrokenError`` for a grammar that does not compile."""
        index = int(submit.sequence_id.rpartition("/")[2])
        answer = rule.choices[index % len(rule.choices)]
        token_ids = tokenizer.encode(answer, add_special_tokens=False).ids
        self._submit = submit
        self._rule = rule
        self._tokens = _planned(token_ids, rule, end_token_id, submit.params)
        self._num_scripted = len(token_ids)
        self._num_cached_tokens: int | None = num_cached_tokens
        self._num_output = 0
        grammar = submit.params.grammar
        self._check = GrammarCheck(grammar, grammar_tokens) if grammar else None

    def step(self) -> SequenceStep:
        """Raises ``GrammarBrokenError``."""
        token_ids: list[int] = []
        reason: Literal["stop", "length"] | None = None
        while reason is None and len(token_ids) < self._rule.tokens_per_step:
            token_id = next(self._tokens)
            self._num_output += 1
            if token_id in self._submit.params.stop_token_ids:
                reason = "stop"
                if self._check is not None:
                    self._check.expect_complete()
                break
            if self._check is not None:
                self._check.take(token_id)
            token_ids.append(token_id)
            reason = self._length_reason()
        num_cached, self._num_cached_tokens = self._num_cached_tokens, None
        return SequenceStep(
            sequence_id=self._submit.sequence_id,
            token_ids=token_ids,
            logprobs=self._logprobs(token_ids),
            num_cached_tokens=num_cached,
            finish_reason=reason,
            num_output_tokens=self._num_output if reason else 0,
        )

    def _length_reason(self) -> Literal["length"] | None:
        scripted_end = self._rule.finish == "length" and self._num_output == self._num_scripted
        is_last = scripted_end or self._num_output == self._submit.params.max_tokens
        return "length" if is_last else None

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

    def __init__(self, grammar: Grammar, tokens: llguidance.LLTokenizer) -> None:
        self._tokens = tokens
        self._matcher = llguidance.LLMatcher(tokens, grammar.text)
        self._free_until = grammar.starts_after_token_id
        self._taken: list[int] = []
        self._raise_error()

    def take(self, token_id: int) -> None:
        if self._free_until is not None:
            if token_id == self._free_until:
                self._free_until = None
            return
        if not self._matcher.consume_token(token_id):
            written = self._tokens.dbg_tokens(self._taken)
            refused = self._tokens.dbg_tokens([token_id])
            raise GrammarBrokenError(f"after {written} the grammar forbids {refused}")
        self._taken.append(token_id)

    def expect_complete(self) -> None:
        self._raise_error()
        if self._free_until is None and not self._matcher.is_accepting():
            written = self._tokens.dbg_tokens(self._taken)
            raise GrammarBrokenError(f"the grammar wants more after {written}")

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarBrokenError(self._matcher.get_error())


def _planned(
    token_ids: list[int], rule: Rule, end_token_id: int, params: SamplingParams
) -> Iterator[int]:
    """Without end: where the model's end token does not count, the answer starts over."""
    once = token_ids if rule.repeats else [*token_ids, end_token_id]
    tokens = chain.from_iterable(repeat(once))
    if params.thinking_limit is not None:
        tokens = _limited_thinking(tokens, params.thinking_limit)
    return _without_early_stops(tokens, params)


def _limited_thinking(tokens: Iterator[int], limit: ThinkingLimit) -> Iterator[int]:
    """The end token comes in the place of the first thought over the limit; the others are lost."""
    num_thoughts = None if limit.start_token_id is not None else 0
    for token_id in tokens:
        if num_thoughts is None:
            num_thoughts = 0 if token_id == limit.start_token_id else None
        elif token_id == limit.end_token_id:
            num_thoughts = None
        elif num_thoughts == limit.max_tokens:
            yield next(later for later in tokens if later == limit.end_token_id)
            num_thoughts = None
            continue
        else:
            num_thoughts += 1
        yield token_id


def _without_early_stops(tokens: Iterator[int], params: SamplingParams) -> Iterator[int]:
    num_given = 0
    for token_id in tokens:
        if token_id in params.stop_token_ids and num_given < params.min_tokens:
            continue
        num_given += 1
        yield token_id
