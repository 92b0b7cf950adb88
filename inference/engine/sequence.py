"""One request in the engine: its tokens, how far they are computed, and the blocks that hold them.

WAITING ──admit──▶ PREFILLING ──last prompt row──▶ DECODING ──▶ ENDED
   ▲                    │                             │
   └────── preempt ─────┴─────────────────────────────┘       any state may go to ENDED
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from inference.engine.errors import IntegrityError
from inference.protocol.engine import SamplingParams, SequenceTiming, SequenceUsage

if TYPE_CHECKING:
    from inference.engine.grammars import GrammarState
    from inference.engine.prompt_images import PromptImages


class SequenceState(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


SEQUENCE_TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.PREFILLING, SequenceState.ENDED}),
    SequenceState.PREFILLING: frozenset(
        {SequenceState.DECODING, SequenceState.WAITING, SequenceState.ENDED}
    ),
    SequenceState.DECODING: frozenset({SequenceState.WAITING, SequenceState.ENDED}),
    SequenceState.ENDED: frozenset(),
}


@dataclass(eq=False, repr=False, slots=True)
class Sequence:
    """Mutated by the scheduler, the block accounting and the speculator, on the engine's thread.

    token_ids   [ prompt ............ | output ....... ]
                0          num_prompt_tokens          len
    computed    [ KV is in blocks .......... )
                0                num_computed_tokens
    """

    sequence_id: str
    token_ids: list[int]
    """Copied; at first the prompt."""
    params: SamplingParams
    _: KW_ONLY
    context_tokens: InitVar[int]
    arrival: int
    """Counts submissions: the higher, the newer."""
    deadline_s: float | None
    """On the engine's clock: when it must have started. ``None`` once it has."""
    submitted_s: float = 0.0
    same_prompt_as: Sequence | None = None
    """The sequence whose prompt blocks this one waits to share. ``None`` once it has started."""
    account: str = ""
    weight: int = 1
    is_anonymous: bool = False
    cache_salt: str = ""
    """Blocks are shared between sequences of one salt only."""
    images: PromptImages | None = None
    prediction: Ordered[int] = ()
    is_traced: bool = False
    """Whether the time of its prefill is reported by itself."""

    num_prompt_tokens: int = field(init=False)
    max_length: int = field(init=False)
    """Prompt and output together never grow past this."""
    stop_ids: frozenset[int] = field(init=False)
    state: SequenceState = SequenceState.WAITING
    admission: int = 0
    """Counts first admissions: the higher, the newer. 0 before it."""
    adapter: Any = None
    awaits_adapter: bool = False
    awaits_prefix: bool = False
    grammar: GrammarState | None = None
    started_s: float | None = None
    first_token_s: float = 0.0
    num_computed_tokens: int = 0
    num_prefilled_tokens: int = 0
    """Prompt tokens that were in blocks at some time, even if the blocks were freed since."""
    num_scored_tokens: int = 0
    """Prompt tokens whose successor's logprob was emitted, where ``params`` ask for them."""
    num_cached_tokens: int | None = None
    """Prompt tokens that the prefix cache held at the first admission."""
    block_ids: list[int] = field(default_factory=list)
    num_dropped_blocks: int = 0
    """Released leading blocks, which no layer sees. Their ids stay in ``block_ids``."""
    num_registered_blocks: int = 0
    parent_content: int | str = field(init=False)
    """Prefix cache's content id of the last registered block; the salt before the first."""
    state_slot: int | None = None
    """Holds the recurrent state of the computed tokens. ``None`` on models without such states."""
    next_state_slot: int | None = None
    num_lagging: int = 0
    """Computed tokens that its recurrent state does not hold yet: a step in which a draft was wrong
    leaves the state as it was, and the next step runs their rows once more."""
    snapshot: int | None = None
    """Content id of the latest state that it kept for later prompts while decoding."""
    drafting: dict[str, object] = field(default_factory=dict)

    def __post_init__(self, context_tokens: int) -> None:
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_length = min(self.num_prompt_tokens + self.params.max_tokens, context_tokens)
        self.stop_ids = frozenset(self.params.stop_token_ids)
        self.parent_content = self.cache_salt

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_score(self) -> int:
        """Prompt tokens that have to run for the logprobs of their successors."""
        if self.params.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - self.num_scored_tokens

    @property
    def has_prompt_in_blocks(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def is_held(self) -> bool:
        """Whether it cannot start yet."""
        if self.awaits_adapter or self.awaits_prefix:
            return True
        if self.params.grammar is not None and self.grammar is None:
            return True
        first = self.same_prompt_as
        if first is None or first.state is SequenceState.ENDED:
            return False
        return not first.has_prompt_in_blocks

    def salt_with(self, fingerprint: str) -> None:
        """Call it before the sequence has blocks."""
        self.cache_salt = f"{self.cache_salt}\0{fingerprint}"
        self.parent_content = self.cache_salt

    def usage(self, now_s: float, *, num_unusable_tokens: int = 0) -> SequenceUsage:
        """``num_unusable_tokens``: outputs that the client does not receive."""
        has_token = self.num_output_tokens > num_unusable_tokens
        return SequenceUsage(
            num_prompt_tokens=self.num_prefilled_tokens,
            num_cached_tokens=min(self.num_cached_tokens or 0, self.num_prefilled_tokens),
            num_output_tokens=self.num_output_tokens - num_unusable_tokens,
            prefill_ms=None if has_token else self.prefill_ms(now_s),
        )

    def prefill_ms(self, now_s: float) -> float | None:
        if not self.is_traced or self.started_s is None:
            return None
        return 1000 * (now_s - self.started_s)

    def timing(self, now_s: float) -> SequenceTiming:
        assert self.started_s is not None, "an output token without a step"
        return SequenceTiming(
            prefill_ms=1000 * (self.first_token_s - self.started_s),
            decode_ms=1000 * (now_s - self.first_token_s),
            prefill_tokens=self.num_prompt_tokens - (self.num_cached_tokens or 0),
            queue_ms=1000 * (self.started_s - self.submitted_s),
        )

    def move_to(self, state: SequenceState) -> None:
        """Raises ``IntegrityError``."""
        if state not in SEQUENCE_TRANSITIONS[self.state]:
            raise IntegrityError(f"{self.sequence_id}: {self.state.value} -> {state.value}")
        self.state = state
