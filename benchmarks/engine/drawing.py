"""What drawing tokens costs a decode step: the same sequences greedily, and as clients ask for it.

``python -m benchmarks.engine.drawing MODEL.gguf``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.engine.steps import decode_step_ms, load_text_engine
from inference.engine.load.load_engine import configure_threads
from inference.protocol.sampling import SamplingParams

PROMPT = "<|im_start|>user\nTell me about the number {index}.<|im_end|>\n<|im_start|>assistant\n"
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "temperature 1": SamplingParams(max_tokens=1),
    "top_p 0.9": SamplingParams(max_tokens=1, top_p=0.9),
    "top_k 40": SamplingParams(max_tokens=1, top_k=40),
    "repetition_penalty 1.1": SamplingParams(max_tokens=1, repetition_penalty=1.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        engine, tokenizer = load_text_engine(arguments.model, Path(temporary))
        prompts = [
            tokenizer.tokenize_str(PROMPT.format(index=index), parse_special=True)
            for index in range(arguments.sequences)
        ]
        turns = [
            {name: decode_step_ms(engine, prompts, params) for name, params in SAMPLINGS.items()}
            for _ in range(1 + arguments.turns)
        ]
    for name in SAMPLINGS:
        milliseconds = statistics.median(turn[name] for turn in turns[1:])
        print(f"decode step of {arguments.sequences}, {name}: {milliseconds:.2f} ms")


if __name__ == "__main__":
    main()
