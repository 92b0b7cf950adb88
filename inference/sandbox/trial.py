"""Compiles a grammar as an engine will, and follows it for some tokens.

An engine compiles what its neuron sends it in its own process. So a worker does the same before:
over the same tokens, with the same limits, on half the stack, and with the first masks.
"""

from __future__ import annotations

import random

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference.garbage import release_freed_memory
from inference.sandbox.jobs import TokenizerFacts
from inference.text.grammars.compiling import LIMITS, one_line

NUM_TOKENS = 16
"""How many tokens are followed. The first masks are the dearest: states are computed in them."""

_tokenizers: dict[str, LLTokenizer] = {}


def keep_tokenizer(facts: TokenizerFacts) -> None:
    _tokenizers[facts.digest] = LLTokenizer(
        TokenizerWrapper(_Vocabulary(facts)), eos_token=facts.end_token_ids or None
    )
    release_freed_memory()


def forget_tokenizer(digest: str) -> None:
    _tokenizers.pop(digest, None)


class _Vocabulary:
    """A tokenizer for ``TokenizerWrapper``. Its texts become tokens greedily: the model's own
    merges would need its whole tokenizer, and decide nothing about what compiles."""

    bos_token_id = None

    def __init__(self, facts: TokenizerFacts) -> None:
        self.tokens = facts.tokens
        self.special_token_ids = facts.special_token_ids
        self.eos_token_id = facts.end_token_ids[0] if facts.end_token_ids else 0
        self._digest = facts.digest

    def __call__(self, text: bytes | str) -> list[int]:
        known = _tokenizers.get(self._digest)
        if known is None:  # the wrapper tries whether it takes bytes
            return []
        return list(known.greedy_tokenize(text if isinstance(text, str) else text.decode()))


def trial_problem(grammar: str, digest: str) -> str | None:
    """Why an engine could not compile ``grammar``, or not begin with it; ``None`` where it can, or
    where there is no tokenizer of that digest to try it with. What goes wrong after the first token
    depends on the tokens, and is the engine's to report: here it must only not end the process."""
    tokenizer = _tokenizers.get(digest)
    if tokenizer is None:
        return None
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    problem: str | None = None
    choice = random.Random(grammar)
    for index in range(NUM_TOKENS):
        token_id = _any_allowed(matcher, tokenizer, choice)
        if matcher.is_error() and index == 0:
            problem = one_line(matcher.get_error())
        if token_id is None or not matcher.consume_token(token_id):
            break
    return problem


def _any_allowed(matcher: LLMatcher, tokenizer: LLTokenizer, choice: random.Random) -> int | None:
    """A token that may come next and is not an end; ``None``: none is, or the grammar broke."""
    if matcher.is_error() or matcher.is_stopped():
        return None
    bias = matcher.compute_logit_bias()
    for start in (choice.randrange(len(bias)), 0):
        token_id = bias.find(ALLOWED, start)
        while token_id in tokenizer.eos_tokens:
            token_id = bias.find(ALLOWED, token_id + 1)
        if token_id >= 0 and not matcher.is_error():
            return token_id
    return None


ALLOWED = b"\xc8"
"""How ``compute_logit_bias`` marks a token that may come next."""
