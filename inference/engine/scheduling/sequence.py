"""One request as the engine sees it: its tokens, how far they are computed, and which blocks hold
them. Knows nothing of tensors or of other sequences.

    WAITING ──admit──▶ PREFILLING ──last prompt row──▶ DECODING ──▶ ENDED
       ▲                    │                             │
       └────── preempt ─────┴─────────────────────────────┘       any state may go to ENDED
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from enum import Enum
from typing import TYPE_CHECKING, Any

from inference.engine.errors import IntegrityError
from inference.protocol.engine import SequenceTiming, SequenceUsage
from inference.protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from inference.engine.prompt_images import PromptImages
    from inference.engine.sampling.grammars import GrammarState


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


class Sequence:
    """Mutated by the scheduler and the block accounting only, on the engine's thread.

    token_ids   [ prompt ............ | output ....... ]
                0          num_prompt_tokens          len
    computed    [ KV is in blocks .......... )
                0                num_computed_tokens
    """

    __slots__ = (
        "account",
        "adapter",
        "admission",
        "arrival",
        "awaits_adapter",
        "awaits_prefix",
        "block_ids",
        "cache_salt",
        "deadline_s",
        "drafting",
        "first_token_s",
        "grammar",
        "images",
        "is_anonymous",
        "is_traced",
        "max_length",
        "next_state_slot",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_dropped_blocks",
        "num_lagging",
        "num_prefilled_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_scored_tokens",
        "params",
        "parent_content",
        "prediction",
        "same_prompt_as",
        "sequence_id",
        "snapshot",
        "started_s",
        "state",
        "state_slot",
        "stop_ids",
        "submitted_s",
        "token_ids",
        "weight",
    )

    def __init__(
        self,
        sequence_id: str,
        prompt: list[int],
        params: SamplingParams,
        *,
        context_tokens: int,
        arrival: int,
        deadline_s: float,
        submitted_s: float = 0.0,
        same_prompt_as: Sequence | None = None,
        account: str = "",
        weight: int = 1,
        is_anonymous: bool = False,
        cache_salt: str = "",
        images: PromptImages | None = None,
        prediction: Ordered[int] = (),
        is_traced: bool = False,
    ) -> None:
        self.sequence_id = sequence_id
        self.params = params
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.max_length = min(len(prompt) + params.max_tokens, context_tokens)
        """Prompt and output together never grow past this."""
        self.stop_ids = frozenset(params.stop_token_ids)
        self.arrival = arrival
        """Counts submissions: the higher, the newer."""
        self.admission = 0
        """Counts first admissions: the higher, the newer. 0 before it."""
        self.account = account
        self.weight = weight
        self.is_anonymous = is_anonymous
        self.is_traced = is_traced
        """Whether the time of its prefill is reported by itself."""
        self.cache_salt = cache_salt
        """Blocks are shared between sequences of one salt only."""
        self.deadline_s: float | None = deadline_s
        """The time on the engine's clock by which it must have started. ``None`` once it has."""
        self.same_prompt_as = same_prompt_as
        """Whose prompt blocks this one waits for, to share them. ``None`` once it has started."""
        self.adapter: Any = None
        """The adapter as the model prepared it; ``None``: it runs on the model as it is."""
        self.awaits_adapter = False
        """It is to have one, which is not loaded yet."""
        self.awaits_prefix = False
        """The beginning of its prompt is being read from disk."""
        self.images = images
        """The prompt's images; ``None`` where it has none."""
        self.grammar: GrammarState | None = None
        """``None`` until it is compiled, where ``params`` have one."""
        self.submitted_s = submitted_s
        """The time of its submission on the engine's clock."""
        self.started_s: float | None = None
        """The time on the engine's clock at which the first step with a part of its prompt
        began."""
        self.first_token_s = 0.0
        """The time of its first output token on the engine's clock."""
        self.state = SequenceState.WAITING
        self.num_computed_tokens = 0
        self.num_prefilled_tokens = 0
        """Prompt tokens that were in blocks at some time: losing the blocks does not undo that."""
        self.num_scored_tokens = 0
        """Prompt tokens whose successor's logprob was emitted, where ``params`` ask for them."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that the prefix cache held at the first admission."""
        self.block_ids: list[int] = []
        self.num_dropped_blocks = 0
        """Leading blocks that it has released, because no layer sees them any more. Their ids stay
        in ``block_ids`` and are not read."""
        self.num_registered_blocks = 0
        """Leading blocks whose content the prefix cache knows."""
        self.parent_content: int | str = cache_salt
        """Prefix cache's content id of the last registered block; the salt before the first."""
        self.state_slot: int | None = None
        """Holds the recurrent state of the computed tokens. ``None`` unless it runs on a model that
        has such states."""
        self.next_state_slot: int | None = None
        """Where the next step writes the state that it ends with."""
        self.num_lagging = 0
        """Computed tokens that its recurrent state does not hold yet: a step in which a draft was
        wrong leaves the state as it was, and the next step runs their rows once more."""
        self.snapshot: int | None = None
        """Content id of the state that it left last for later prompts while it decodes."""
        self.prediction = prediction
        """Tokens that its client expects in the output."""
        self.drafting: dict[str, object] = {}
        """What each origin of drafts knows of it, by the origin's name."""

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
        """Whether it cannot start yet, however much room there is: its grammar is being compiled,
        its adapter loaded, its prompt's beginning read from disk, or the sequence whose prompt it
        shares is still computing that."""
        if self.awaits_adapter or self.awaits_prefix:
            return True
        if self.params.grammar is not None and self.grammar is None:
            return True
        first = self.same_prompt_as
        if first is None or first.state is SequenceState.ENDED:
            return False
        return not first.has_prompt_in_blocks

    def salt_with(self, fingerprint: str) -> None:
        """Adds ``fingerprint`` to the cache salt, so that the sequence shares blocks only with
        sequences that compute the same. Call it before the sequence has blocks."""
        self.cache_salt = f"{self.cache_salt}\0{fingerprint}"
        self.parent_content = self.cache_salt

    def usage(self, now_s: float, *, num_unusable_tokens: int = 0) -> SequenceUsage:
        """Returns the sequence's usage so far. ``num_unusable_tokens``: outputs that the client
        does not receive."""
        has_token = self.num_output_tokens > num_unusable_tokens
        return SequenceUsage(
            num_prompt_tokens=self.num_prefilled_tokens,
            num_cached_tokens=min(self.num_cached_tokens or 0, self.num_prefilled_tokens),
            num_output_tokens=self.num_output_tokens - num_unusable_tokens,
            prefill_ms=None if has_token else self.prefill_ms(now_s),
        )

    def prefill_ms(self, now_s: float) -> float | None:
        """Returns the milliseconds of prefill up to ``now_s``. ``None``: the sequence has not
        started, or is not traced."""
        if not self.is_traced or self.started_s is None:
            return None
        return 1000 * (now_s - self.started_s)

    def timing(self, now_s: float) -> SequenceTiming:
        """The times of a sequence whose last token came at ``now_s``."""
        assert self.started_s is not None, "an output token without a step"
        return SequenceTiming(
            prefill_ms=1000 * (self.first_token_s - self.started_s),
            decode_ms=1000 * (now_s - self.first_token_s),
            prefill_tokens=self.num_prompt_tokens - (self.num_cached_tokens or 0),
            queue_ms=1000 * (self.started_s - self.submitted_s),
        )

    def move_to(self, state: SequenceState) -> None:
        """Raises ``IntegrityError`` on a move that the table does not have."""
        if state not in SEQUENCE_TRANSITIONS[self.state]:
            raise IntegrityError(f"{self.sequence_id}: {self.state.value} -> {state.value}")
        self.state = state
