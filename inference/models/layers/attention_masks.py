"""Which slots of its context a row may look at, for attention on torch's operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.batch import PrefillSpan


@dataclass(frozen=True, slots=True)
class ContextMask:
    """Where decode rows may not look among the slots that were gathered for them."""

    added: torch.Tensor
    """(num_rows, 1, 1, num_context) of the activations' dtype, to be added to scores: 0, or -inf
    where a row may not look."""
    hidden: torch.Tensor
    """The same places among all rows' slots: on a CPU their indices; elsewhere, where those would
    have to be waited for, booleans (num_rows * num_context, 1, 1, 1)."""

    def clear(self, slots: torch.Tensor) -> None:
        """Zero what no row may look at, in place: (num_rows * num_context, 2, kv_heads, head_dim).

        Weighing nothing is not enough. Padding, and slots that the sequence has not written yet,
        hold what others have left there, and nothing times what is not a number is not a number.
        """
        if self.hidden.dtype == torch.bool:
            slots.masked_fill_(self.hidden, 0)
        else:
            slots.index_fill_(0, self.hidden, 0)


def decode_mask(
    positions: torch.Tensor, num_context_tokens: int, sliding_window: int | None, dtype: torch.dtype
) -> ContextMask:
    """A row may look at its own position and before, and within the window."""
    context = torch.arange(num_context_tokens, device=positions.device)
    last = positions.unsqueeze(1)
    hidden = context > last
    if sliding_window is not None:
        hidden |= context <= last - sliding_window
    added = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    added.masked_fill_(hidden, float("-inf"))
    flat = hidden.flatten()
    return ContextMask(
        added=added[:, None, None],
        hidden=flat.nonzero().squeeze(1) if flat.device.type == "cpu" else flat.view(-1, 1, 1, 1),
    )


def prefill_mask(
    span: PrefillSpan,
    sliding_window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int,
) -> torch.Tensor | None:
    """(num_tokens, num_context), 0 where a row may look, else -inf. ``None``: plain causal, from
    the start of the sequence. The context ends with the span, and with a window it begins with the
    block of the first token that a row sees: blocks before it may be somebody else's already."""
    if span.start == 0 and (sliding_window is None or span.end <= sliding_window):
        return None
    first = 0
    if sliding_window is not None:
        first = max(0, span.start - sliding_window + 1) // block_tokens * block_tokens
    rows = torch.arange(span.start, span.end, device=device).unsqueeze(1)
    context = torch.arange(first, span.end, device=device)
    hidden = context > rows
    if sliding_window is not None:
        hidden |= context <= rows - sliding_window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))
