"""Steps for tests, query by query, sequences that advance by them, and a capture of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from inference.models.config import ModelConfig
from inference.models.graphed import Replay
from inference.models.step_input import (
    EMPTY_STATE,
    ImageEmbeddings,
    StepImages,
    StepInput,
    block_table_of,
)

Query = tuple[Sequence[int], int, Sequence[int]]
"""Token ids, the position of the first, and the blocks of their sequence."""
BLOCKS_EACH = 8


def step_of(*queries: Query, block_tokens: int, num_decodes: int = 0, **given: Any) -> StepInput:
    """``given``: see ``StepInput.of_queries``."""
    return StepInput.of_queries(
        [token_id for token_ids, _, _ in queries for token_id in token_ids],
        [start for _, start, _ in queries],
        [len(token_ids) for token_ids, _, _ in queries],
        block_table_of([blocks for _, _, blocks in queries]),
        block_tokens,
        num_decodes=num_decodes,
        **given,
    )


class Sequences:
    """Some sequences' keys, values and states, and how far each has come. A state is read in one
    slot and written to another."""

    def __init__(
        self, model: Any, num_sequences: int, block_tokens: int = 32, kv: Any = None
    ) -> None:
        sizes = num_sequences * BLOCKS_EACH, block_tokens, 1 + 2 * num_sequences
        self.kv = model.new_kv(*sizes) if kv is None else kv
        self._model, self._block_tokens = model, block_tokens
        self._lengths, self._turns = [0] * num_sequences, [0] * num_sequences

    @torch.inference_mode()
    def run(
        self,
        spans: Iterable[tuple[int, Sequence[int]]],
        changes: dict[str, Any] | None = None,
        **given: Any,
    ) -> torch.Tensor:
        """Each span: the next tokens of a sequence; all in one step, some of whose fields
        ``changes`` replaces. ``given``: see ``step_of``."""
        queries, reads, writes = [], [], []
        for sequence, token_ids in spans:
            start, slot = self._lengths[sequence], 1 + 2 * sequence
            reads.append(slot + self._turns[sequence] if start else EMPTY_STATE)
            self._turns[sequence] ^= 1
            writes.append(slot + self._turns[sequence])
            first = BLOCKS_EACH * sequence
            queries.append((token_ids, start, range(first, first + BLOCKS_EACH)))
            self._lengths[sequence] = start + len(token_ids)
        given = {"state_slots": (reads, writes), "block_tokens": self._block_tokens} | given
        return self._model.forward(replace(step_of(*queries, **given), **(changes or {})), self.kv)


NUM_FIRST_ROWS = 11


def logits_of(
    model: Any,
    block_tokens: int = 32,
    first: dict[str, Any] | None = None,
    adapter: Any = None,
) -> list[torch.Tensor]:
    """A prompt in two chunks, the second over a block's end and beside a sequence that decodes;
    then both decode, one with drafts. ``first``: what is replaced in the first step. ``adapter``:
    of the prompt's rows."""
    rows, own = (
        Sequences(model, 2, block_tokens),
        {} if adapter is None else {"adapters": [adapter]},
    )
    tokens = [token * 7 % model.config.vocab_size for token in range(3, 3 + 60)]
    both = {} if adapter is None else {"adapters": [None, adapter]}
    split = NUM_FIRST_ROWS
    return [
        rows.run([(0, tokens[:split])], first, **own),
        rows.run([(1, tokens[50:55])], logit_rows=[4]),
        rows.run(
            [(1, tokens[55:56]), (0, tokens[split:40])],
            num_decodes=1,
            logit_rows=[0, 1, 29],
            **both,
        ),
        rows.run([(1, tokens[56:59]), (0, tokens[40:41])], num_decodes=2, **both),
    ]


def images_of(config: ModelConfig, num_deep: int, *, is_rotated: bool = True) -> StepImages:
    """Four rows of the first of these steps."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(4, config.hidden_size, generator=generator) for _ in range(1 + num_deep)]
    places = torch.arange(NUM_FIRST_ROWS).repeat(3, 1).index_fill(1, torch.tensor([3, 4]), 2)
    return StepImages(
        rotary=places if is_rotated else None,
        row_ids=torch.tensor([2, 3, 4, 5]),
        rows=ImageEmbeddings(rows[0], tuple(rows[1:])),
    )


class FakeCapture:
    """Records nothing and calls again."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.replayed: list[int] = []
        """Places among the captured, one for each replay."""

    def __call__(self, forward: Callable[[], None]) -> Replay:
        index, self.num_captured = self.num_captured, self.num_captured + 1
        forward()

        def replay() -> None:
            self.replayed.append(index)
            forward()

        return replay
