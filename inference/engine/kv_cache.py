"""The blocks of keys and values: which are in use and by whom, and the prefix cache. Only integers;
the tensors are elsewhere (``inference.models.paged_kv``).

    unused ──allocate──▶ in use (references ≥ 1) ──last release──▶ reusable (content is known)
      ▲                    ▲  ▲   │   ▲                                │   │
      │  last release, content│   │   └────────── prefix hit ──────────┘   │
      └───────── not known ─┼─┼───┘                                        │ the oldest, when
                            │ └────────────────── allocate ────────────────┘ nothing is unused
    untouched ──allocate────┘

Untouched blocks were never in use: on a CPU the system has given them no memory yet. They are
allocated before reusable ones until ``kept_blocks`` have been touched, so that prefixes are kept;
beyond that only where nothing else is free, so that memory grows by what sequences need.

The prefix cache is keyed by (content id of the parent block, the block's tokens), which a dict
compares: a hash collision costs time, never correctness. Content ids are never used twice. The
first block's parent is its account's salt, so the time to an answer reveals nothing of other
accounts' prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from itertools import count

from inference.engine.errors import IntegrityError
from inference.engine.sequence import Sequence
from inference.engine.state_slots import StateSlots

Parent = int | str
"""Content id of the block before; a salt where there is none."""
BlockContent = tuple[int | str, ...]
"""A block's token ids, and then the digests of the images that have tokens there."""
ContentKey = tuple[Parent, BlockContent]


class BlockAllocator:
    def __init__(self, num_blocks: int, kept_blocks: int | None = None) -> None:
        """``kept_blocks``: ``None`` for all, where untouched ones cost no less than others."""
        self.num_blocks = num_blocks
        self._kept_blocks = num_blocks if kept_blocks is None else min(kept_blocks, num_blocks)
        self._num_touched = 0
        """Blocks from here on are untouched."""
        self._unused: list[int] = []
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._content: dict[ContentKey, tuple[int, int]] = {}
        self._key_of: dict[int, ContentKey] = {}
        self._content_ids = count(1)
        self.num_gains = 0
        """How many blocks have ever become free or known. A sequence that lacks n blocks finds them
        after n more at the earliest."""
        self.on_forgotten: Callable[[int], None] | None = None

    @property
    def num_free(self) -> int:
        return len(self._unused) + len(self._reusable) + self.num_blocks - self._num_touched

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def content_ids(self) -> set[int]:
        return {content_id for _, content_id in self._content.values()}

    def allocate(self) -> int:
        """The caller has checked ``num_free``."""
        if self._unused:
            block_id = self._unused.pop()
        elif self._num_touched < (self._kept_blocks if self._reusable else self.num_blocks):
            block_id = self._num_touched
            self._num_touched += 1
        else:
            block_id, _ = self._reusable.popitem(last=False)
            self._forget(self._key_of.pop(block_id))
        self._references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        if self._references[block_id] == 0:
            del self._reusable[block_id]
        self._references[block_id] += 1

    def release(self, block_ids: Ordered[int]) -> None:
        """Last block first: a chain's tail is reused before its head, which other prompts share."""
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            if self._references[block_id] > 0:
                continue
            self.num_gains += 1
            if block_id in self._key_of:
                self._reusable[block_id] = None
            else:
                self._unused.append(block_id)

    def is_reusable(self, block_id: int) -> bool:
        return block_id in self._reusable

    def find(self, parent: Parent, content: BlockContent) -> tuple[int, int] | None:
        return self._content.get((parent, content))

    def content_of(self, block_id: int) -> int | None:
        key = self._key_of.get(block_id)
        return None if key is None else self._content[key][1]

    def register(self, block_id: int, parent: Parent, content: BlockContent) -> int:
        """Returns the content id. A block that already holds this content stays the known one."""
        key = (parent, content)
        if (known := self._content.get(key)) is not None:
            return known[1]
        self.num_gains += 1
        content_id = next(self._content_ids)
        self._content[key] = (block_id, content_id)
        self._key_of[block_id] = key
        return content_id

    def invalidate_prefix(self, block_ids: Ordered[int]) -> None:
        for block_id in block_ids:
            if (key := self._key_of.pop(block_id, None)) is not None:
                self._forget(key)
                if block_id in self._reusable:
                    del self._reusable[block_id]
                    self._unused.append(block_id)

    def _forget(self, key: ContentKey) -> None:
        _, content_id = self._content.pop(key)
        if self.on_forgotten is not None:
            self.on_forgotten(content_id)

    def check_integrity(self, holders: Ordered[Ordered[int]]) -> None:
        """``holders`` are the block lists of every live sequence. Raises ``IntegrityError``."""
        expected = [0] * self.num_blocks
        for block_ids in holders:
            for block_id in block_ids:
                expected[block_id] += 1
        if expected != self._references:
            raise IntegrityError("reference counts differ from what sequences hold")
        free = [*self._unused, *self._reusable, *range(self._num_touched, self.num_blocks)]
        if sorted(free) != [b for b in range(self.num_blocks) if expected[b] == 0]:
            raise IntegrityError("free blocks are not exactly the unreferenced ones")
        if any(b in self._key_of for b in self._unused):
            raise IntegrityError("an unused block has known content")
        if any(b not in self._key_of for b in self._reusable):
            raise IntegrityError("a reusable block has no known content")
        if {key: block for block, key in self._key_of.items()} != {
            key: block for key, (block, _) in self._content.items()
        }:
            raise IntegrityError("the prefix cache's two directions differ")


DEFAULT_BLOCK_TOKENS = 32
NEW_TURN_TOKENS = 8
"""The last tokens of a chat prompt only open the assistant's turn. The conversation's next prompt
has other tokens there, so a snapshot after them would never be found again."""


class KVCache:
    """Sets ``block_ids`` and the prefix fields of a ``Sequence``."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        kept_blocks: int | None = None,
        num_state_slots: int = 0,
        window: int | None = None,
    ) -> None:
        """``num_state_slots``: 0 without recurrent layers. ``window``: tokens that a row sees."""
        self.block_tokens = block_tokens
        self.window = window
        self.allocator = BlockAllocator(num_blocks, kept_blocks)
        self.states: StateSlots | None = None
        if num_state_slots:
            self.states = StateSlots(num_state_slots)
            self.allocator.on_forgotten = self.states.forget
        self._short: tuple[Sequence, int] | None = None
        """The sequence lacks blocks until the allocator's ``num_gains`` reaches this number."""

    def admit(self, sequence: Sequence) -> bool:
        """``False``, and nothing changed, when there are too few blocks. The last token is never
        taken from the cache: its row has to run to give logits."""
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
        if self._is_still_short(sequence):
            return False
        if self._num_blocks_of(sequence) <= self.allocator.num_free:
            return True  # also without sharing any; looking the prefix up takes longer
        shared, _ = self.known_prefix(sequence)
        return self._is_enough_beside(shared, sequence)

    def _is_still_short(self, sequence: Sequence) -> bool:
        if self.states is not None and not self.states.has_free_slots:
            return True
        if self._short is None or self._short[0] is not sequence:
            return False
        return self.allocator.num_gains < self._short[1]

    def _num_blocks_of(self, sequence: Sequence) -> int:
        return -(-len(sequence.token_ids) // self.block_tokens)

    def _is_enough_beside(self, shared: list[int], sequence: Sequence) -> bool:
        """Idle blocks of ``shared`` count as free now, and are taken once they are shared."""
        num_idle = sum(self.allocator.is_reusable(block_id) for block_id in shared)
        num_fresh = self._num_blocks_of(sequence) - len(shared)
        num_missing = num_fresh - (self.allocator.num_free - num_idle)
        if num_missing > 0:
            self._short = sequence, self.allocator.num_gains + num_missing
        return num_missing <= 0

    def known_prefix(self, sequence: Sequence) -> tuple[list[int], list[int]]:
        """Returns block ids and content ids of the longest known chain without the last token and
        those still to be scored. With recurrent layers the chain ends at a snapshot."""
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
        """Adds at most one block. Returns ``False`` if none is free."""
        if num_tokens <= len(sequence.block_ids) * self.block_tokens:
            return True
        if self.allocator.num_free == 0:
            return False
        sequence.block_ids.append(self.allocator.allocate())
        return True

    def register_computed(self, sequence: Sequence) -> None:
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
        """Released blocks stay in the prefix cache until another sequence needs them.

        positions   0 ....... | num_computed - window + 1 ....... num_computed
                    [ dropped, whole blocks ][ seen by the next row           ]
        """
        num_unseen = max(0, sequence.num_computed_tokens - window + 1) // self.block_tokens
        if num_unseen > sequence.num_dropped_blocks:
            self.allocator.release(sequence.block_ids[sequence.num_dropped_blocks : num_unseen])
            sequence.num_dropped_blocks = num_unseen

    def end_of_chunk(self, sequence: Sequence, start: int, end: int) -> int:
        """With recurrent layers it is a block's end, for a snapshot, and the last one before the
        tokens with which a conversation's next prompt will differ."""
        if self.states is None:
            return end
        size, num_tokens = self.block_tokens, len(sequence.token_ids)
        last_shared = max(0, num_tokens - NEW_TURN_TOKENS) // size * size
        if start < last_shared < end:
            return last_shared
        rounded = end // size * size
        return rounded if end < num_tokens and rounded > start else end

    def commit_states(self, sequences: Ordered[Sequence]) -> None:
        """Call it once the step's tokens are counted and its blocks registered."""
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
        """Its keys and values may be NaN. Of the blocks that it released because no row sees them,
        only those that still hold its content are removed."""
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
    """An image's tokens are all alike, so its digest is part of the content."""
    tokens = tuple(sequence.token_ids[start:end])
    if sequence.images is None:
        return tokens
    return tokens + sequence.images.content(start, end)


def _held(sequence: Sequence) -> list[int]:
    if not sequence.num_dropped_blocks:
        return sequence.block_ids
    return sequence.block_ids[sequence.num_dropped_blocks :]
