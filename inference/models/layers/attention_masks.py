"""Which slots of its context a row may look at, for attention on torch's operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.step_input import Ints, Query


@dataclass(frozen=True, slots=True)
class ContextMask:
    """Masks those of the slots gathered for decode rows that a row may not attend to."""

    added: torch.Tensor
    """(num_rows, 1, 1, num_context) of the activations' dtype, to be added to scores: 0, or -inf
    where a row may not look."""
    hidden: torch.Tensor
    """The same places among all rows' slots: on a CPU their indices; elsewhere, where those would
    have to be waited for, booleans (num_rows * num_context, 1, 1, 1)."""

    def clear(self, slots: torch.Tensor) -> None:
        """Zeroes hidden slots in place: (num_rows * num_context, 2, kv_heads, head_dim).

        A weight of 0 is not enough. Padding, and slots that the sequence has not written yet, hold
        other sequences' values, and 0 times NaN is NaN.
        """
        if self.hidden.dtype == torch.bool:
            slots.masked_fill_(self.hidden, 0)
        else:
            slots.index_fill_(0, self.hidden, 0)


def first_seen(positions: torch.Tensor, window: int, *, is_chunked: bool) -> torch.Tensor:
    """The first position that rows at ``positions`` may look at: that of their chunk of ``window``
    tokens, or of the last ``window`` ones, which may be before the sequence."""
    return positions // window * window if is_chunked else positions - window + 1


def decode_mask(
    positions: torch.Tensor,
    num_context_tokens: int,
    window: int | None,
    dtype: torch.dtype,
    *,
    is_chunked: bool = False,
) -> ContextMask:
    """A row may look at its own position and before, and within the window or its chunk."""
    context = torch.arange(num_context_tokens, device=positions.device)
    last = positions.unsqueeze(1)
    hidden = context > last
    if window is not None:
        hidden |= context < first_seen(last, window, is_chunked=is_chunked)
    added = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    added.masked_fill_(hidden, float("-inf"))
    flat = hidden.flatten()
    return ContextMask(
        added=added[:, None, None],
        hidden=flat.nonzero().squeeze(1) if flat.device.type == "cpu" else flat.view(-1, 1, 1, 1),
    )


def prefill_mask(
    query: Query,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int,
    last_seen: Ints | None = None,
    *,
    is_chunked: bool = False,
) -> torch.Tensor | None:
    """(num_tokens, num_context), 0 where a row may look, else -inf. ``None``: plain causal, from
    the start of the sequence. The context ends with the query, and with a window or chunks it
    begins with the block of the first token that a row sees: earlier blocks may belong to another
    sequence. ``last_seen``: of the step's rows, as in ``StepInput``."""
    is_short = window is None or query.end <= window
    if query.start == 0 and is_short and last_seen is None:
        return None
    first = 0
    if window is not None:
        oldest = query.start // window * window if is_chunked else query.start - window + 1
        first = max(0, oldest) // block_tokens * block_tokens
    rows = torch.arange(query.start, query.end, device=device).unsqueeze(1)
    context = torch.arange(first, query.end, device=device)
    last = rows
    if last_seen is not None:
        of_query = torch.from_numpy(last_seen[query.first_row : query.last_row])
        last = of_query.to(device, torch.int64).unsqueeze(1)
    hidden = context > last
    if window is not None:
        hidden |= context < first_seen(rows, window, is_chunked=is_chunked)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))
