"""The prompts. Pure: the same salt gives the same text, another one a text that no cache knows."""

from __future__ import annotations

import random

CHARACTERS_PER_TOKEN = 4
"""The characters taken for a token until an endpoint has counted a prompt, and where it reports no
count."""
MIN_FILLER_CHARACTERS = 32
NO_THINKING = "/no_think"
"""Models that think obey it, others read over it: speeds are of answers."""
WORDS = """
river stone market evening letter garden winter bridge paper captain window mountain silver orange
morning village cotton engine harbour island lantern meadow needle ocean pepper quiet road summer
table valley water yellow anchor basket candle driver forest ginger hammer iron jacket kitchen
ladder mirror number office pencil rabbit saddle thunder velvet wagon
""".split()  # noqa: SIM905 - sixty quotes add nothing
ASK = (
    "Leave the words above alone. Write a report of about three hundred words for the council of a "
    "small coastal town on whether it should rebuild its old wooden pier. Say what the pier was "
    "used for, what a new one would cost, who would gain from it, and what you advise."
)
EMBEDDING_TEXTS = 16
EMBEDDING_TEXT_TOKENS = 64


def filler(num_tokens: int, salt: str) -> str:
    """About so many tokens of words in an order that only ``salt`` decides, from the first one
    on."""
    return _filler_text(num_tokens * CHARACTERS_PER_TOKEN, salt)


def _filler_text(num_characters: int, salt: str) -> str:
    numbers = random.Random(salt)
    words, length = [], 0
    while length <= num_characters:
        word = numbers.choice(WORDS)
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:num_characters]


def chat_prompt(num_tokens: int, salt: str, filler_characters: int | None = None) -> str:
    """About so many tokens, the question included. ``filler_characters`` is how long its words are
    for this endpoint's tokenizer, by ``corrected_filler``."""
    if filler_characters is None:
        filler_characters = guessed_filler(num_tokens)
    return f"{_filler_text(filler_characters, salt)}\n\n{ASK} {NO_THINKING}"


def guessed_filler(num_tokens: int) -> int:
    rest = num_tokens * CHARACTERS_PER_TOKEN - len(ASK)
    return max(MIN_FILLER_CHARACTERS, rest)


def corrected_filler(num_tokens: int, filler_characters: int, num_counted: int) -> int:
    """How many characters of filler make a prompt of ``num_tokens``, where so many made one of
    ``num_counted``."""
    length = filler_characters + len(ASK)
    missing = (num_tokens - num_counted) * length / max(1, num_counted)
    return max(MIN_FILLER_CHARACTERS, round(filler_characters + missing))


def embedding_texts(salt: str) -> list[str]:
    return [filler(EMBEDDING_TEXT_TOKENS, f"{salt}-{number}") for number in range(EMBEDDING_TEXTS)]
