"""An embedding model in the engine process, from the neuron's end of the socket."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModel, Qwen3Config

from inference.protocol.engine import (
    CancelSequence,
    EmbedSequences,
    EngineMessage,
    Idle,
    Loaded,
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    Shutdown,
    StepOutputs,
)
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess, started

VOCAB_SIZE = 64
DIMENSIONS = 32
CONTEXT_TOKENS = 2048


@pytest.fixture
def decoder_dir(tmp_path: Path) -> Path:
    """A random decoder without the head that generates: it pools by the last token."""
    torch.manual_seed(9)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=DIMENSIONS,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT_TOKENS,
        is_matryoshka=True,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    words = {str(number): number for number in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(words, unk_token="0")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def next_outputs(engine: EngineProcess) -> StepOutputs:
    def has_outputs(message: EngineMessage) -> bool:
        return isinstance(message, StepOutputs) and bool(message.outputs)

    found = next(message for message in engine.messages() if has_outputs(message))
    assert isinstance(found, StepOutputs)
    return found


def vectors_of(outputs: StepOutputs) -> np.ndarray:
    (output,) = outputs.outputs
    assert isinstance(output, SequencesEmbedded), output
    return np.stack([np.frombuffer(vector, "<f4") for vector in output.vectors])


@pytest.mark.slow
@torch.inference_mode()
def test_loads_answers_cancels_and_shuts_down(decoder_dir: Path, data_dir: Path) -> None:
    prompts = [[5, 6, 7], [9], [3] * 40]
    reference = AutoModel.from_pretrained(decoder_dir, dtype=torch.float32).eval()
    last = [reference(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    expected = torch.nn.functional.normalize(torch.stack(last), dim=-1)
    with started(f"path:{decoder_dir}", data_dir, kv_memory_bytes=None) as engine:
        loaded = engine.wait_loaded()
        assert isinstance(loaded, Loaded), loaded
        report = loaded.report
        assert (report.kind, report.architecture) == ("embedding", "qwen3")
        assert (report.embedding_dimensions, report.context_tokens) == (DIMENSIONS, CONTEXT_TOKENS)
        assert report.is_matryoshka
        assert report.estimated_bytes == report.weight_bytes
        assert report.actual_bytes == report.weight_bytes + report.memory_correction_bytes > 0

        engine.send(EmbedSequences(sequence_id="whole", prompts=prompts))
        assert np.allclose(vectors_of(next_outputs(engine)), expected, atol=1e-5)

        engine.send(EmbedSequences(sequence_id="cut", prompts=prompts, dimensions=8))
        shorter = torch.nn.functional.normalize(expected[:, :8], dim=-1)
        assert np.allclose(vectors_of(next_outputs(engine)), shorter, atol=1e-5)

        engine.submit("of text", 5)
        (failed,) = next_outputs(engine).outputs
        assert isinstance(failed, SequenceFailed) and failed.code == "engine_error"

        engine.send(EmbedSequences(sequence_id="long", prompts=[[3] * 2000] * 500))
        engine.send(CancelSequence(sequence_id="long"))
        (cancelled,) = next_outputs(engine).outputs
        assert isinstance(cancelled, SequenceCancelled) and cancelled.sequence_id == "long"
        idle = next(message for message in engine.messages() if isinstance(message, Idle))
        assert (idle.stats.in_flight, idle.stats.queue_depth) == (0, 0)
        assert idle.stats.last_forward_unix_s is not None

        engine.send(EmbedSequences(sequence_id="open", prompts=[[3] * 2000] * 500))
        engine.send(Shutdown())
        (cancelled,) = next_outputs(engine).outputs
        assert isinstance(cancelled, SequenceCancelled) and cancelled.sequence_id == "open"
        assert engine.process.wait(EXIT_TIMEOUT_S) == 0
