"""Log probabilities of tokens, from the model's own distribution: of the tokens that were sampled,
and of a prompt's own."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

from inference.engine.sampling.row_pieces import row_pieces
from inference.engine.scheduling.schedule import PrefillChunk
from inference.protocol.sampling import TokenLogprob


def token_logprobs(
    logits: torch.Tensor, token_ids: Ordered[int], num_top: Ordered[int], *, ranks: bool = False
) -> list[TokenLogprob]:
    """Returns for each row of ``logits`` (num_rows, vocab_size) float32 the log probability of its
    token and of its ``num_top`` likeliest tokens. ``ranks``: each token's rank in the vocabulary
    too."""
    logprobs = torch.log_softmax(logits, dim=-1)
    top = logprobs.topk(min(max(num_top), logprobs.shape[-1]), dim=-1)
    top_values, top_ids = top.values.tolist(), top.indices.tolist()
    chosen = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    own = logprobs.gather(1, chosen)
    values = own.flatten().tolist()
    places: list[int] | list[None] = [None] * len(values)
    if ranks:
        places = ((logprobs > own).sum(dim=-1) + 1).tolist()
    return [
        TokenLogprob(token_id, value, list(zip(ids, best, strict=True))[:most], place)
        for token_id, value, ids, best, most, place in zip(
            token_ids, values, top_ids, top_values, num_top, places, strict=True
        )
    ]


def prompt_logprobs(
    chunks: list[PrefillChunk], logits: torch.Tensor
) -> dict[str, list[TokenLogprob]]:
    """Returns the log probabilities of the chunks' prompt tokens by sequence id. ``logits``
    (num_scored, vocab_size) float32 are those of the chunks' scored tokens, one chunk after the
    other."""
    found: dict[str, list[TokenLogprob]] = {}
    first_row = 0
    for chunk in chunks:
        if not (scored := chunk.scored):
            continue
        sequence, end_row = chunk.sequence, first_row + len(scored)
        successors = sequence.token_ids[scored.start + 1 : scored.stop + 1]
        rows = logits[first_row:end_row]
        found[sequence.sequence_id] = [
            logprob
            for piece in row_pieces(len(rows), rows.shape[-1])
            for logprob in token_logprobs(
                rows[piece],
                successors[piece],
                [sequence.params.prompt_logprobs or 0] * len(successors[piece]),
                ranks=True,
            )
        ]
        first_row = end_row
    return found
