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
    from inference.engine.images.prompt_images import PromptImages
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
        self.cache_salt = cache_salt
        """Blocks are shared between sequences of one salt only."""
        self.deadline_s: float | None = deadline_s
        """On the engine's clock: must have started by then. ``None`` once it has."""
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
        """On the engine's clock."""
        self.started_s: float | None = None
        """On the engine's clock: when the first step with a part of its prompt began."""
        self.first_token_s = 0.0
        """On the engine's clock, once there is an output token."""
        self.state = SequenceState.WAITING
        self.num_computed_tokens = 0
        self.num_prefilled_tokens = 0
        """Prompt tokens that were in blocks at some time: losing the blocks does not undo that."""
        self.num_scored_tokens = 0
        """Prompt tokens whose successor's logprob has been told, where ``params`` ask for them."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that the prefix cache held at the first admission."""
        self.block_ids: list[int] = []
        self.num_dropped_blocks = 0
        """Leading blocks that it has given back, for no layer sees them any more. Their ids stay in
        ``block_ids``, where nobody looks at them."""
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
        self.drafting: object | None = None
        """What a ``Speculator`` knows of it."""

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
        """Before it has blocks: it shares them only with sequences that compute what it does."""
        self.cache_salt = f"{self.cache_salt}\0{fingerprint}"
        self.parent_content = self.cache_salt

    def usage(self, *, num_unusable_tokens: int = 0) -> SequenceUsage:
        """What has been computed for it. ``num_unusable_tokens``: outputs that nobody is told."""
        return SequenceUsage(
            num_prompt_tokens=self.num_prefilled_tokens,
            num_cached_tokens=min(self.num_cached_tokens or 0, self.num_prefilled_tokens),
            num_output_tokens=self.num_output_tokens - num_unusable_tokens,
        )

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
