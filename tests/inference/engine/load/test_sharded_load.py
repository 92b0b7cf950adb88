"""Weights go straight to where they stay: beside the model there is never more than one shard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
HIDDEN, INTERMEDIATE, NUM_LAYERS, VOCAB = 1024, 2816, 8, 16_000
LAYERS_PER_SHARD = 2
MARGIN = 1.1
UNNEEDED = {"huggingface_hub", "transformers", "sympy", "scipy", "django", "redis"}
"""Tens of megabytes that no engine of a model on disk has a use for."""


def layer(index: int) -> dict[str, torch.Tensor]:
    shapes = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"} | {
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    prefix = f"model.layers.{index}"
    return {
        f"{prefix}.{name}.weight": torch.full(shape, 0.01, dtype=torch.bfloat16)
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def shard_bytes(sharded_dir: Path) -> int:
    """Returns the size of the largest shard."""
    return max(file.stat().st_size for file in sharded_dir.glob("*.safetensors"))


@pytest.fixture(scope="module")
def sharded_dir(tmp_path_factory: pytest.TempPathFactory, ascii_tokenizer_file: Path) -> Path:
    """A llama of 120 million weights: four shards of 52 MB, and one of its table."""
    directory = tmp_path_factory.mktemp("sharded")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    shutil.copy(ascii_tokenizer_file, directory / "tokenizer.json")
    table = torch.full((VOCAB, HIDDEN), 0.01, dtype=torch.bfloat16)
    norm = torch.ones(HIDDEN, dtype=torch.bfloat16)
    shards = [{"model.embed_tokens.weight": table, "model.norm.weight": norm}]
    for first in range(0, NUM_LAYERS, LAYERS_PER_SHARD):
        shard: dict[str, torch.Tensor] = {}
        for index in range(first, first + LAYERS_PER_SHARD):
            shard |= layer(index)
        shards.append(shard)
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, directory / name)
    weight_map = {t: name for name, shard in zip(names, shards, strict=True) for t in shard}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize(
    "kind",
    ["float32", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bfloat16", "q4"))],
)
def test_beside_the_model_there_is_never_more_than_one_shard(
    sharded_dir: Path, shard_bytes: int, data_dir: Path, kind: str
) -> None:
    """Anonymous memory: the mapped files are the page cache's. float32 goes through the native
    decoder's panels, bfloat16 through torch, and q4 is made on the way by all cores."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sharded_load.py")), str(sharded_dir), kind],
        cwd=REPOSITORY_DIR,
        env=os.environ
        | {
            "HELEXA_DATA_DIR": str(data_dir),
            "HELEXA_ENGINE_THREADS": "2",
            "PYTHONPATH": str(REPOSITORY_DIR),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["model_bytes"] > shard_bytes
    assert seen["peak_bytes"] - seen["model_bytes"] <= MARGIN * shard_bytes, seen
    assert not UNNEEDED.intersection(seen["packages"])
