"""What transformers answers when the likeliest token is always taken.

``generate`` does the same; for models as small as those of tests it costs several times as much as
running them.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def greedy(
    reference: PreTrainedModel, prompt: list[int], num_tokens: int, **images: torch.Tensor
) -> list[int]:
    """``images``: the model's inputs beside token ids, with the whole prompt."""
    assert reference.generation_config.eos_token_id is None, "it would end before its tokens do"
    _forget_images(reference)
    output = _run(reference, prompt, None, **images)
    answer = [_likeliest(output)]
    while len(answer) < num_tokens:
        output = _run(reference, answer[-1:], output.past_key_values)
        answer.append(_likeliest(output))
    return answer


@torch.no_grad()
def check_greedy(reference: PreTrainedModel, prompt: list[int], answer: list[int]) -> None:
    """Checks by one run over all tokens that each token of ``answer`` is the reference's likeliest
    after all before it."""
    logits = reference(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    assert answer == logits.argmax(dim=-1).tolist()


def _forget_images(reference: PreTrainedModel) -> None:
    """Clears ``rope_deltas``: a vision model keeps the last prompt's offset by images, and would
    apply it after the next prompt, too."""
    for module in reference.modules():
        if hasattr(module, "rope_deltas"):
            module.rope_deltas = None


def _run(reference: PreTrainedModel, token_ids: list[int], past: Any, **images: Any) -> Any:
    ids = torch.tensor([token_ids])
    return reference(input_ids=ids, past_key_values=past, use_cache=True, **images)


def _likeliest(output: Any) -> int:
    return int(output.logits[0, -1].argmax())
