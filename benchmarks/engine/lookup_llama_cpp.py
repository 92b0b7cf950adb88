"""llama.cpp's lookup decoding at the requests of ``benchmarks.engine.speculation``, one at a time.

    python -m benchmarks.engine.lookup_llama_cpp MODEL.gguf off|prompt_lookup

llama-cpp-python drafts by looking up the last tokens in the prompt and the answer, and llama.cpp
verifies. Run it in turns with ``speculation --at-once 1``, in processes of their own.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.engine.speculation import CHAT, DRAWN, OUTPUT_TOKENS, TASKS

CONTEXT_TOKENS = 4096
DRAFT_TOKENS = 2
"""What llama-cpp-python's documentation advises on a CPU; ten, its default, are for cards."""


def open_model(model: Path, is_drafting: bool, num_draft_tokens: int, num_threads: int) -> Any:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(num_pred_tokens=num_draft_tokens) if is_drafting else None
    return Llama(
        str(model),
        n_ctx=CONTEXT_TOKENS,
        n_threads=num_threads,
        n_threads_batch=num_threads,
        draft_model=draft,
        verbose=False,
    )


def tokens_per_s(model: Any, task: str, turn: int) -> float:
    """Returns the decoding speed, counted from the first token on as in ``Subject.run``."""
    text = CHAT.format(TASKS[task].format(turn + 2))
    prompt = model.tokenize(text.encode(), add_bos=False, special=True)
    model.reset()
    model.set_seed(0)
    temperature = 0.8 if task in DRAWN else 0.0
    num_tokens, began_s = 0, 0.0
    for token in model.generate(prompt, temp=temperature, top_k=0, top_p=1.0, min_p=0.0):
        if num_tokens == 0:
            began_s = time.perf_counter()
        num_tokens += 1
        if num_tokens == OUTPUT_TOKENS or token == model.token_eos():
            break
    return (num_tokens - 1) / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("speculation", choices=["off", "prompt_lookup"])
    parser.add_argument("--draft-tokens", type=int, default=DRAFT_TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    is_drafting = arguments.speculation == "prompt_lookup"
    model = open_model(arguments.model, is_drafting, arguments.draft_tokens, arguments.threads)
    tokens_per_s(model, next(iter(TASKS)), 0)  # pays for first times
    for task in TASKS:
        speed = tokens_per_s(model, task, 1)
        print(f"{task}, 1 at once, llama.cpp, {arguments.speculation}: {speed:.0f} tok/s")


if __name__ == "__main__":
    main()
