"""Which block is in use, which holds known content: reference counts, the prefix cache, reuse by
age. Only integers; the tensors are elsewhere (``inference.models.cache.paged_kv``).

    unused ──allocate──▶ in use (references ≥ 1) ──last release──▶ reusable (content is known)
      ▲                    ▲  ▲   │   ▲                                │   │
      │  last release, content│   │   └────────── prefix hit ──────────┘   │
      └───────── not known ─┼─┼───┘                                        │ the oldest, when
                            │ └────────────────── allocate ────────────────┘ nothing is unused
    untouched ──allocate────┘

Untouched blocks were never in use: on a CPU the system has given them no memory yet. They are taken
before reusable ones while no more than ``kept_blocks`` have been touched, so that prefixes are
kept; beyond that only where nothing else is free, so that memory grows by what sequences need at
once and not by how many prompts have passed.

The prefix cache is keyed by (content id of the parent block, the block's tokens). A dict hashes
that key and then compares it, so two prompts can share a block only when every token from the
start is equal: a hash collision costs time, never correctness. Content ids are never used twice.
The first block's parent is the sequence's salt, which is its account's. So two accounts never share
blocks, and the time to a prompt's answer reveals nothing of other accounts' prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from itertools import count

from inference.engine.errors import IntegrityError

Parent = int | str
"""Content id of the block before; a salt where there is none."""
BlockContent = tuple[int | str, ...]
"""A block's token ids, and then the digests of the images that have tokens there."""
ContentKey = tuple[Parent, BlockContent]


class BlockAllocator:
    """Hands out block ids 0 … num_blocks - 1."""

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
        """Key -> (block id, content id)."""
        self._key_of: dict[int, ContentKey] = {}
        self._content_ids = count(1)
        self.num_gains = 0
        """How many blocks have become free or known, ever. A sequence that lacks n blocks has them
        after n more of these at the earliest."""
        self.on_forgotten: Callable[[int], None] | None = None
        """Called with each content id that leaves the prefix cache."""

    @property
    def num_free(self) -> int:
        return len(self._unused) + len(self._reusable) + self.num_blocks - self._num_touched

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def content_ids(self) -> set[int]:
        """Returns the content ids that the prefix cache knows."""
        return {content_id for _, content_id in self._content.values()}

    def allocate(self) -> int:
        """A block with one reference and no known content. The caller has checked ``num_free``."""
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
        """One more reference to a block that the prefix cache knows."""
        if self._references[block_id] == 0:
            del self._reusable[block_id]
        self._references[block_id] += 1

    def release(self, block_ids: Ordered[int]) -> None:
        """Drop one reference each, last block first: a chain's tail is reused before its head, for
        the head is what other prompts share."""
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
        """(block id, content id) of the block that holds ``content`` after ``parent``."""
        return self._content.get((parent, content))

    def content_of(self, block_id: int) -> int | None:
        """Content id of a block that the prefix cache knows."""
        key = self._key_of.get(block_id)
        return None if key is None else self._content[key][1]

    def register(self, block_id: int, parent: Parent, content: BlockContent) -> int:
        """Make a full block's content known; returns its content id. Where another block already
        holds the same content that one stays the known one."""
        key = (parent, content)
        if (known := self._content.get(key)) is not None:
            return known[1]
        self.num_gains += 1
        content_id = next(self._content_ids)
        self._content[key] = (block_id, content_id)
        self._key_of[block_id] = key
        return content_id

    def invalidate_prefix(self, block_ids: Ordered[int]) -> None:
        """Removes the blocks from the prefix cache. Sequences that hold them keep them."""
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
