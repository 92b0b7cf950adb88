"""Do ranks work on this host? ``manage.py tp_smoke`` runs
``python -m inference.engine.divided.rank_smoke [--ranks N] [--device D]``.

A tiny random model is computed by one process and by N ranks; their logits are compared, and what
each rank took is printed. Exit code 0: they agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from inference.engine.divided.ranked_model import RankedModel, lead_ranks
from inference.engine.load.memory_use import HostGauge, gauge_for
from inference.loading.hub_config import read_directory_config
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.registry import build_model
from inference.models.step_input import ALL_ROWS, StepInput, block_table_of
from inference.protocol.load import LoadSpec

BLOCK_TOKENS = 32
NUM_TOKENS = 40
LARGEST_DIFFERENCE = 1e-3
"""The most that log probabilities may differ, in float32."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="manage.py tp_smoke", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="how many (2)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="cards where there are enough, else the CPU"
    )
    parser.add_argument("--cuda-devices", metavar="0,1", help="which cards, one for each rank")
    options = parser.parse_args(arguments)
    num_ranks: int = options.ranks
    try:
        devices = chosen_devices(
            num_ranks, options.device, options.cuda_devices, torch.cuda.device_count()
        )
    except ValueError as error:
        print(f"tp_smoke: {error}", file=sys.stderr)
        return 1
    gauge = HostGauge()
    with tempfile.TemporaryDirectory(prefix="helexa-smoke-") as folder:
        directory = save_model(Path(folder) / "model", num_ranks)
        spec = LoadSpec(
            job_id="smoke",
            model="smoke",
            source=f"path:{directory}",
            dtype="float32",
            devices=devices,
            tensor_parallel=num_ranks,
        )
        alone = msgspec.structs.replace(spec, tensor_parallel=1, devices=devices[:1])
        expected = logits_of(lone_model(alone, Path(folder)))
        ranked = ranked_model(spec, Path(folder))
        found = logits_of(ranked)
        ranked.new_kv(1, BLOCK_TOKENS)  # the other ranks answer with their memory
        ranked.followers.close()
    difference = float((found - expected).abs().max())
    print(
        f"{num_ranks} ranks on {', '.join(devices)}: log probabilities differ by {difference:.1e}"
    )
    own = gauge_for(ranked.device, gauge)
    print(f"rank 0: {_megabytes(own.used_bytes())} (with the whole model, for comparison)")
    for rank, memory in enumerate(ranked.memory, start=1):
        print(f"rank {rank}: {_megabytes(memory.load_bytes)}")
    if not difference < LARGEST_DIFFERENCE:
        print(f"that is more than {LARGEST_DIFFERENCE:g}: the ranks do not agree", file=sys.stderr)
        return 1
    print(f"status=ok tp_size={num_ranks} devices={','.join(devices)}")
    return 0


def chosen_devices(
    num_ranks: int, kind: str | None, cards: str | None, num_cards: int
) -> list[str]:
    if num_ranks < 2:
        raise ValueError(f"at least 2 ranks share a model, not {num_ranks}")
    if cards is not None:
        words = cards.split(",")
        if kind == "cpu" or not all(word.isdecimal() for word in words):
            raise ValueError(f"--cuda-devices names cards by number, as in 0,1; not {cards!r}")
        indexes = sorted({int(word) for word in words})
        if len(indexes) != num_ranks or len(words) != num_ranks:
            raise ValueError(f"{num_ranks} ranks need {num_ranks} different cards, not {cards}")
    elif kind == "cpu":
        return ["cpu"]
    else:
        indexes = list(range(num_ranks))
    if indexes[-1] < num_cards:
        return [f"cuda:{index}" for index in indexes]
    here = f"this host has {num_cards or 'no'} CUDA device{'s' * (num_cards != 1)}"
    if kind == "cuda" or cards is not None:
        raise ValueError(f"{here}, and {num_ranks} ranks need one each")
    print(f"{here}: the ranks share the processors")
    return ["cpu"]


def lone_model(spec: LoadSpec, folder: Path) -> AnyModel:
    with closing(opened_model(spec, folder)) as opened:
        return build_model(opened.config, opened.weights, opened.config.max_positions)


def ranked_model(spec: LoadSpec, folder: Path) -> RankedModel:
    with closing(opened_model(spec, folder)) as opened:
        return lead_ranks(spec, opened, opened.config.max_positions, None)[0]


def opened_model(spec: LoadSpec, folder: Path) -> OpenedModel:
    opened = open_model(spec, folder / "cache", lambda progress: None)
    assert isinstance(opened, OpenedModel)
    return opened


@torch.inference_mode()
def logits_of(model: AnyModel) -> torch.Tensor:
    kv = model.new_kv(NUM_TOKENS // BLOCK_TOKENS + 1, BLOCK_TOKENS)
    tokens = [token * 37 % model.config.vocab_size for token in range(NUM_TOKENS)]
    prompt = StepInput.of_sequence(tokens[:-1], BLOCK_TOKENS, logit_rows=ALL_ROWS)
    blocks = block_table_of([[0, 1]])
    decode = StepInput.of_decodes(tokens[-1:], [NUM_TOKENS - 1], blocks, BLOCK_TOKENS)
    logits = torch.cat([model.forward(step, kv) for step in (prompt, decode)])
    return torch.log_softmax(logits, dim=-1).cpu()


def save_model(directory: Path, num_ranks: int) -> Path:
    heads = 2 * num_ranks
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 32 * heads,
        "intermediate_size": 96 * heads,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": num_ranks,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vocabulary = {chr(65 + index): index for index in range(26)}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file(_random_tensors(read_directory_config(directory)), directory / "model.safetensors")
    return directory


def _random_tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator)
        * (0.1 if len(tensor.shape) > 1 else 1.0)
        for tensor in family_of(config).tensors(config)
    }


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
