"""The prompts. Pure: the same salt gives the same text, another one a text that no cache knows."""

from __future__ import annotations

import random

NO_THINKING = "/no_think"
"""Models that think obey it, others read over it: speeds are of answers."""
WORDS = """
river stone market evening letter garden winter bridge paper captain window mountain silver orange
morning village cotton engine harbour island lantern meadow needle ocean pepper quiet road summer
table valley water yellow anchor basket candle driver forest ginger hammer iron jacket kitchen
ladder mirror number office pencil rabbit saddle thunder velvet wagon
""".split()  # noqa: SIM905 - sixty quotes add nothing
"""Each is one token of the vocabularies of today's models, or nearly."""
ASK = (
    "Leave the words above alone. Write a report of about three hundred words for the council of a "
    "small coastal town on whether it should rebuild its old wooden pier. Say what the pier was "
    "used for, what a new one would cost, who would gain from it, and what you advise."
)
ASK_TOKENS = 64
MIN_WORDS = 8
"""So few tell a new prompt from those that caches know."""


def chat_prompt(num_tokens: int, salt: str) -> str:
    """About so many tokens: words in an order that only ``salt`` decides, from the first one on,
    and the question."""
    numbers = random.Random(salt)
    num_words = max(MIN_WORDS, num_tokens - ASK_TOKENS)
    words = " ".join(numbers.choice(WORDS) for _ in range(num_words))
    return f"{words}\n\n{ASK} {NO_THINKING}"
