"""How a decode step's time grows with its context on a hybrid of random weights, beside one layer
of its attention alone: whatever else grows is not its attention's.

``python -m benchmarks.engine.hybrid_context`` (torch's operators on one thread of the CPU)

A decoder of three Gated DeltaNet layers for every attention layer, and one that has those attention
layers alone, take the same steps at contexts up to 32k tokens. What the first needs beyond the
second is the recurrent layers': the column ``others`` stays where it is.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.config import MixerKind, ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.families.registry import family_of
from inference.models.layers.linear import LinearFactory
from inference.models.layers.recurrent.delta_config import DeltaConfig
from inference.models.step_input import LONE_STATE, NUM_LONE_STATES, StepInput, block_table_of

BLOCK_TOKENS = 32
CONTEXTS = (512, 2048, 8192, 16384, 32768)
NUM_GROUPS = 2
"""The model has so many groups, each of three recurrent layers and one of attention."""
NUM_TURNS = 9
GROUP: tuple[MixerKind, ...] = ("delta", "delta", "delta", "attention")

HYBRID = ModelConfig(
    architecture="qwen3_5",
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_layers=NUM_GROUPS * len(GROUP),
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    max_positions=max(CONTEXTS),
    rms_norm_eps=1e-6,
    rope_theta=1e7,
    rotary_dim=8,
    norm="rms_plus_one",
    qk_norm=True,
    has_output_gate=True,
    mixers=NUM_GROUPS * GROUP,
    delta=DeltaConfig(
        num_key_heads=4, num_value_heads=8, key_head_dim=32, value_head_dim=32, conv_kernel=4
    ),
)
ATTENTION_ALONE = replace(HYBRID, num_layers=NUM_GROUPS, mixers=NUM_GROUPS * GROUP[-1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.hybrid_context", description=__doc__
    )
    parser.add_argument("--rows", type=int, default=4, help="sequences that decode together")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = [_random_model(config) for config in (HYBRID, ATTENTION_ALONE)]
    for context_tokens in CONTEXTS:
        whole_ms, attention_ms = (
            _step_ms(model, arguments.rows, context_tokens) for model in models
        )
        print(
            f"{context_tokens:>6} tokens  hybrid {whole_ms:7.2f} ms  its attention layers alone "
            f"{attention_ms:7.2f} ms  others {whole_ms - attention_ms:6.2f} ms"
        )


def _random_model(config: ModelConfig) -> DecoderModel:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        tensor.name: torch.randn(tensor.shape, generator=generator) * 0.05
        for tensor in family_of(config).tensors(config)
    }
    factory = LinearFactory(torch.device("cpu"), torch.float32, exact=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(tensors, path)
        weights = OpenedWeights(SafetensorsFiles([path]), factory, lambda progress: None)
        return DecoderModel(config, weights, config.max_positions, "fp32")


@torch.inference_mode()
def _step_ms(model: DecoderModel, num_rows: int, context_tokens: int) -> float:
    """The best of some turns, processor time. All rows read the same blocks."""
    num_blocks = context_tokens // BLOCK_TOKENS
    kv = model.new_kv(num_blocks, BLOCK_TOKENS, NUM_LONE_STATES + num_rows)
    step = StepInput.of_decodes(
        range(num_rows),
        [context_tokens - 1] * num_rows,
        block_table_of([range(num_blocks)] * num_rows),
        BLOCK_TOKENS,
        state_slots=(
            [LONE_STATE] * num_rows,
            range(NUM_LONE_STATES, NUM_LONE_STATES + num_rows),
        ),
    )
    best_s = float("inf")
    for _ in range(NUM_TURNS):
        began_s = time.process_time()
        model.forward(step, kv)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s * 1e3


if __name__ == "__main__":
    main()
