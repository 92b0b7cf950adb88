"""What a draft model brings, shown with two sizes that are made on the spot.

    python -m benchmarks.engine.draft_model off|draft_model [--at-once 1 8] [--agreement 0.05]

The larger model has random weights. The smaller one is its first layers with its table, norm and
head; what the other layers add is made small, so that the two agree about as often as a model and
a good draft model of its family do. One engine a process: run it in turns with either setting. The
digest of the answers has to be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.engine.decoding import Decoded, decode
from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads, load_engine
from inference.protocol.engine import SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams

VOCAB_SIZE = 8192
HIDDEN_SIZE = 1024
INNER_SIZE = 2816
NUM_HEADS = 16
NUM_KV_HEADS = 4
NUM_LAYERS = 16
NUM_DRAFT_LAYERS = 1
WEIGHT_SIZE = 0.03
FIRST_CHARACTER = 0x4E00
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 160
TASKS = {"greedy": 0.0, "drawn": 0.8}
"""The temperature of each task, by name."""


def make_models(directory: Path, agreement: float) -> tuple[Path, Path]:
    """The larger and the smaller one. ``agreement``: how much later layers add, in parts of what
    the first ones do."""
    torch.manual_seed(1)
    large = {
        "model.embed_tokens.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE) * WEIGHT_SIZE,
        "model.norm.weight": torch.ones(HIDDEN_SIZE),
        "lm_head.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE) * WEIGHT_SIZE,
    }
    for index in range(NUM_LAYERS):
        large |= _layer(index, 1.0 if index < NUM_DRAFT_LAYERS else agreement)
    small = {
        name: weight
        for name, weight in large.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < NUM_DRAFT_LAYERS
    }
    return (
        _save(directory / "large", large, NUM_LAYERS),
        _save(directory / "small", small, NUM_DRAFT_LAYERS),
    )


def _layer(index: int, added: float) -> dict[str, torch.Tensor]:
    head_dim = HIDDEN_SIZE // NUM_HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
        "self_attn.k_proj": (NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
        "self_attn.v_proj": (NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
        "self_attn.o_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
        "mlp.gate_proj": (INNER_SIZE, HIDDEN_SIZE),
        "mlp.up_proj": (INNER_SIZE, HIDDEN_SIZE),
        "mlp.down_proj": (HIDDEN_SIZE, INNER_SIZE),
    }
    made = {}
    for name, shape in shapes.items():
        scale = added if name.endswith(("o_proj", "down_proj")) else 1.0
        made[f"model.layers.{index}.{name}.weight"] = torch.randn(shape) * WEIGHT_SIZE * scale
    for name in ("input_layernorm", "post_attention_layernorm"):
        made[f"model.layers.{index}.{name}.weight"] = torch.ones(HIDDEN_SIZE)
    return made


def _save(directory: Path, weights: dict[str, torch.Tensor], num_layers: int) -> Path:
    directory.mkdir()
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INNER_SIZE,
        "num_hidden_layers": num_layers,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()},
        directory / "model.safetensors",
    )
    vocabulary = {chr(FIRST_CHARACTER + token_id): token_id for token_id in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=chr(FIRST_CHARACTER)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def measure(engine: Engine, at_once: int, temperature: float) -> Decoded:
    generator = random.Random(at_once)
    return decode(
        engine,
        [
            SubmitSequence(
                sequence_id=str(index),
                token_ids=generator.choices(range(1, VOCAB_SIZE), k=PROMPT_TOKENS),
                params=SamplingParams(
                    max_tokens=OUTPUT_TOKENS, temperature=temperature, seed=index
                ),
            )
            for index in range(at_once)
        ],
    )


def _line(found: Decoded) -> str:
    right = found.num_accepted_drafts / max(1, found.num_drafted_tokens)
    digest = hashlib.sha256(json.dumps(found.answers).encode()).hexdigest()[:12]
    return f"{right:.0%} of the drafts right, answers {digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("speculation", choices=["off", "draft_model"])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--agreement", type=float, default=0.05)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, help="where compiled kernels are kept")
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        large, small = make_models(Path(temporary), arguments.agreement)
        is_drafting = arguments.speculation == "draft_model"
        spec = LoadSpec(
            job_id="bench",
            model="bench",
            source=f"path:{large}",
            devices=["cpu"],
            kv_memory_bytes=512 * 1024**2,
            speculation=arguments.speculation,
            draft_model=f"path:{small}" if is_drafting else None,
        )
        loaded = load_engine(spec, arguments.data_dir or Path(temporary), lambda progress: None)
        engine = loaded.engine
        assert isinstance(engine, Engine)
        measure(engine, 1, 0.0)  # pays for first times
        for at_once in arguments.at_once:
            for task, temperature in TASKS.items():
                found = [measure(engine, at_once, temperature) for _ in range(arguments.turns)]
                print(
                    f"{task}, {at_once} at once, {arguments.speculation}: "
                    f"{max(one.tokens_per_s for one in found):.1f} tok/s, "
                    f"{_line(found[-1])}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
