"""transformers' continuous batching on a folder of dense weights, in bfloat16, on any device."""

from __future__ import annotations

from benchmarks.subjects.transformers_continuous import CacheSize, TransformersContinuous

LIBRARIES = ("torch", "transformers")
PAGE_TOKENS = 256
"""transformers' own choice, and what its flash attention wants."""


def open_subject(
    folder: str, device: str, num_sequences: str, sequence_tokens: str, batch_tokens: str
) -> TransformersContinuous:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Read to the host first: straight to a device takes a package that nothing else here needs.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    cache = CacheSize(
        num_sequences=int(num_sequences),
        sequence_tokens=int(sequence_tokens),
        batch_tokens=int(batch_tokens),
        page_tokens=PAGE_TOKENS,
    )
    return TransformersContinuous(model.to(device), cache)
