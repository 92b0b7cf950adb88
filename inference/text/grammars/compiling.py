"""Whether llguidance can follow a grammar. It may crash or hang on one that a stranger wrote, so
this is for the workers of ``inference.sandbox`` alone.
"""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inference.recent_results import RecentResults

MAX_PROBLEM_BYTES = 256 * 1024

LIMITS = LLParserLimits(verbose_errors=False)
"""Errors without the parser's state, which is of no use to a client."""


def find_problem(grammar: str) -> str | None:
    """Why it cannot; ``None`` when it can. Without a tokenizer: token ids are not checked."""
    is_broken, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return one_line(messages[0]) if is_broken else None


def first_token_problem(grammar: str) -> str | None:
    """Why no answer to it can begin, where every byte is a token; ``None``: one can, or it does not
    compile at all."""
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return None
    matcher.compute_logit_bias()
    return one_line(matcher.get_error()) if matcher.is_error() else None


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def problem_of(grammar: str) -> str | None:
    """The same, kept for the next request that has the same grammar."""
    return _problems.get(grammar, find_problem)


_problems: RecentResults[str | None] = RecentResults(
    MAX_PROBLEM_BYTES, lambda _grammar, problem: len(problem or "")
)


def is_panic(error: BaseException) -> bool:
    """Whether llguidance panicked: what PyO3 then raises is no ``Exception``, and not exported."""
    return type(error).__name__ == "PanicException"


def one_line(message: str) -> str:
    """``message`` as one line. Messages about regular expressions have several; the last one has
    the reason."""
    if message.startswith("NoExtensionBias"):
        return "nothing can match it"
    first, *others = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {others[-1].removeprefix('error: ')}" if others else first
