"""What each sequence holds of the cache: the blocks of its keys and values (``block_allocator``),
and on a model with recurrent layers the slots of its states (``state_slots``). Only integers: this
file must not know tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from inference.engine.cache.block_allocator import BlockAllocator, BlockContent, Parent
from inference.engine.cache.state_slots import StateSlots
from inference.engine.scheduling.sequence import Sequence

DEFAULT_BLOCK_TOKENS = 32
NEW_TURN_TOKENS = 8
"""The last tokens of a chat prompt only open the assistant's turn. The conversation's next prompt
has other tokens there, so a snapshot after them would never be found again."""


class KVCache:
    """What sequences hold. Sets ``block_ids`` and the prefix fields of a ``Sequence``."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        kept_blocks: int | None = None,
        num_state_slots: int = 0,
        window: int | None = None,
    ) -> None:
        """``num_state_slots``: of a model with recurrent layers, else 0. ``window``: how many
        tokens a row sees at most, its own among them; ``None`` where a layer sees all."""
        self.block_tokens = block_tokens
        self.window = window
        self.allocator = BlockAllocator(num_blocks, kept_blocks)
        self.states: StateSlots | None = None
        if num_state_slots:
            self.states = StateSlots(num_state_slots)
            self.allocator.on_forgotten = self.states.forget
        self._short: tuple[Sequence, int] | None = None
        """Who lacked blocks last, and the allocator's ``num_gains`` before which it still does:
        looking at its prefix again before that would find the same."""

    def admit(self, sequence: Sequence) -> bool:
        """Allocates blocks for all tokens of ``sequence``, shared ones where its prefix is known,
        and sets where computing starts. ``False``, and nothing changed, when there are too few.

        The last token is never taken from the cache: its row has to run to give logits.
        """
        if self._is_still_short(sequence):
            return False
        shared, contents = self.known_prefix(sequence)
        if not self._is_enough_beside(shared, sequence):
            return False
        for block_id in shared:
            self.allocator.share(block_id)
        num_fresh = self._num_blocks_of(sequence) - len(shared)
        fresh = [self.allocator.allocate() for _ in range(num_fresh)]
        sequence.block_ids = shared + fresh
        sequence.num_registered_blocks = len(shared)
        sequence.parent_content = contents[-1] if contents else sequence.cache_salt
        sequence.num_computed_tokens = len(shared) * self.block_tokens
        if self.states is not None:
            self.states.admit(sequence, contents[-1] if contents else None)
        return True

    def has_room(self, sequence: Sequence) -> bool:
        """Whether ``admit`` would give it blocks now. Changes nothing."""
        if self._is_still_short(sequence):
            return False
        if self._num_blocks_of(sequence) <= self.allocator.num_free:
            return True  # also without sharing any; looking the prefix up takes longer
        shared, _ = self.known_prefix(sequence)
        return self._is_enough_beside(shared, sequence)

    def _is_still_short(self, sequence: Sequence) -> bool:
        """Whether too little has changed since it last lacked state slots or blocks."""
        if self.states is not None and not self.states.has_free_slots:
            return True
        if self._short is None or self._short[0] is not sequence:
            return False
        return self.allocator.num_gains < self._short[1]

    def _num_blocks_of(self, sequence: Sequence) -> int:
        return -(-len(sequence.token_ids) // self.block_tokens)

    def _is_enough_beside(self, shared: list[int], sequence: Sequence) -> bool:
        """Whether enough blocks are free for the tokens that ``shared`` does not hold. Blocks of
        ``shared`` that no sequence uses count as free now and are taken once they are shared."""
        num_idle = sum(self.allocator.is_reusable(block_id) for block_id in shared)
        num_fresh = self._num_blocks_of(sequence) - len(shared)
        num_missing = num_fresh - (self.allocator.num_free - num_idle)
        if num_missing > 0:
            self._short = sequence, self.allocator.num_gains + num_missing
        return num_missing <= 0

    def known_prefix(self, sequence: Sequence) -> tuple[list[int], list[int]]:
        """Block ids and content ids of the longest known chain that leaves one token to run, and
        those that are still to be scored. With recurrent layers the chain ends at a snapshot."""
        if sequence.num_tokens_to_score:
            return [], []
        tokens, size = sequence.token_ids, self.block_tokens
        block_ids: list[int] = []
        contents: list[int] = []
        parent: Parent = sequence.cache_salt
        for start in range(0, len(tokens) - size, size):
            known = self.allocator.find(parent, _content(sequence, start, start + size))
            if known is None:
                break
            block_id, parent = known
            block_ids.append(block_id)
            contents.append(parent)
        while self.states is not None and contents and not self.states.has_snapshot(contents[-1]):
            block_ids.pop()
            contents.pop()
        return block_ids, contents

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for that many of the sequence's tokens, at most one block more than it has.
        ``False``: it needs a block and none is free."""
        if num_tokens <= len(sequence.block_ids) * self.block_tokens:
            return True
        if self.allocator.num_free == 0:
            return False
        sequence.block_ids.append(self.allocator.allocate())
        return True

    def register_computed(self, sequence: Sequence) -> None:
        """Adds the blocks that this step's tokens have filled to the prefix cache."""
        size = self.block_tokens
        while (sequence.num_registered_blocks + 1) * size <= sequence.num_computed_tokens:
            index = sequence.num_registered_blocks
            tokens = _content(sequence, index * size, (index + 1) * size)
            sequence.parent_content = self.allocator.register(
                sequence.block_ids[index], sequence.parent_content, tokens
            )
            sequence.num_registered_blocks += 1
        if self.window is not None:
            self._drop_unseen(sequence, self.window)

    def _drop_unseen(self, sequence: Sequence, window: int) -> None:
        """Releases the blocks that neither its next row nor any later one sees. They stay in the
        prefix cache until another sequence needs them.

            positions   0 ....... | num_computed - window + 1 ....... num_computed
                        [ dropped, whole blocks ][ seen by the next row           ]
        """
        num_unseen = max(0, sequence.num_computed_tokens - window + 1) // self.block_tokens
        if num_unseen > sequence.num_dropped_blocks:
            self.allocator.release(sequence.block_ids[sequence.num_dropped_blocks : num_unseen])
            sequence.num_dropped_blocks = num_unseen

    def end_of_chunk(self, sequence: Sequence, start: int, end: int) -> int:
        """Returns where a chunk of the sequence's tokens ends that could go up to ``end``. With
        recurrent layers it ends at a block's end, so that a snapshot can be kept there, and at the
        last one before the tokens with which the next prompt of a conversation will differ."""
        if self.states is None:
            return end
        size, num_tokens = self.block_tokens, len(sequence.token_ids)
        last_shared = max(0, num_tokens - NEW_TURN_TOKENS) // size * size
        if start < last_shared < end:
            return last_shared
        rounded = end // size * size
        return rounded if end < num_tokens and rounded > start else end

    def commit_states(self, sequences: Ordered[Sequence]) -> None:
        """Advances the sequences' recurrent states after a step whose rows all count, once its
        tokens are counted and its blocks registered, and keeps snapshots at the ends of blocks."""
        if self.states is None:
            return
        for sequence in sequences:
            self.states.advance(sequence)
            sequence.num_lagging = 0
            if sequence.num_computed_tokens != sequence.num_registered_blocks * self.block_tokens:
                continue
            self._short = None  # one new snapshot may make many known blocks of use
            content_id = sequence.parent_content
            assert isinstance(content_id, int), "there is a block"
            if sequence.has_prompt_in_blocks:
                self.states.replace_decode_snapshot(sequence, content_id)
            else:
                self.states.keep(sequence, content_id)

    def invalidate_prefix(self, sequence: Sequence) -> None:
        """Removes its blocks from the prefix cache, because its keys and values may be NaN: the
        same prompt is computed again. Of the blocks that it released because no row sees them,
        only those that still hold its content are removed; others may own the rest by now."""
        dropped = sequence.block_ids[: sequence.num_dropped_blocks]
        known, _ = self.known_prefix(sequence)
        own = [
            block_id for block_id, found in zip(dropped, known, strict=False) if block_id == found
        ]
        self.allocator.invalidate_prefix([*own, *_held(sequence)])

    def release(self, sequence: Sequence) -> None:
        self.allocator.release(_held(sequence))
        sequence.block_ids = []
        sequence.num_dropped_blocks = 0
        sequence.num_lagging = 0
        sequence.num_registered_blocks = 0
        sequence.parent_content = sequence.cache_salt
        sequence.num_computed_tokens = 0
        if self.states is not None:
            self.states.release(sequence)

    def check_integrity(self, live: Ordered[Sequence]) -> None:
        self.allocator.check_integrity([_held(sequence) for sequence in live])
        if self.states is not None:
            self.states.check_integrity(live)
            self.states.check_known(self.allocator.content_ids)


def _content(sequence: Sequence, start: int, end: int) -> BlockContent:
    """The content of the block of tokens [start, end). An image's tokens are all alike, so its
    digest is part of it."""
    tokens = tuple(sequence.token_ids[start:end])
    if sequence.images is None:
        return tokens
    return tokens + sequence.images.content(start, end)


def _held(sequence: Sequence) -> list[int]:
    if not sequence.num_dropped_blocks:
        return sequence.block_ids
    return sequence.block_ids[sequence.num_dropped_blocks :]
