"""What adapters cost a decode step: the same sequences on the model as it is, and over adapters of
random weights that change every projection.

``python -m benchmarks.engine.adapters MODEL.gguf``
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.engine.steps import decode_step_ms, load_text_engine, open_on_cpu
from inference.engine.load.load_engine import configure_threads
from inference.models.adapter_targets import adaptable_shapes
from inference.models.config import ModelConfig
from inference.protocol.adapters import AdapterSpec
from inference.protocol.sampling import SamplingParams

PROMPT = "<|im_start|>user\nTell me about the number {index}.<|im_end|>\n<|im_start|>assistant\n"
SIZE = 0.01
"""The weights are so small that sequences run as long as the base model's do."""
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.adapters")
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        opened = open_on_cpu(arguments.model, Path(temporary))
        opened.close()
        specs = [
            write_adapter(Path(temporary) / f"adapter-{seed}", opened.config, arguments.rank, seed)
            for seed in range(arguments.adapters)
        ]
        engine, tokenizer = load_text_engine(arguments.model, Path(temporary))
        prompts = [
            tokenizer.tokenize_str(PROMPT.format(index=index), parse_special=True)
            for index in range(arguments.sequences)
        ]
        turns = [
            (
                decode_step_ms(engine, prompts, GREEDY),
                decode_step_ms(engine, prompts, GREEDY, specs),
            )
            for _ in range(1 + arguments.turns)
        ][1:]
    base, adapted = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(second / first for first, second in turns)
    print(f"decode step of {arguments.sequences}: {base:.2f} ms")
    print(
        f"the same over {arguments.adapters} adapters of rank {arguments.rank}: {adapted:.2f} ms, "
        f"{100 * (ratio - 1):+.1f} % (median of {arguments.turns} turns)"
    )


def write_adapter(directory: Path, config: ModelConfig, rank: int, seed: int) -> AdapterSpec:
    """Writes an adapter that changes all that one may change, in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (out_features, in_features) in adaptable_shapes(config).items():
        for half, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
            weight = torch.randn(shape, generator=generator) * SIZE
            tensors[f"base_model.model.{name}.lora_{half}.weight"] = weight.to(torch.bfloat16)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    document = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": "all-linear",
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(document))
    return AdapterSpec(name=directory.name, source=f"path:{directory}")


if __name__ == "__main__":
    main()
