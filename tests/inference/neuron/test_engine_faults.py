"""A neuron and a real engine, whose device is lost in a step."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from transformers import LlamaConfig, LlamaForCausalLM

from inference.neuron.discovery import Discovery
from inference.neuron.redis_client import connect
from inference.neuron.service import NeuronService
from inference.protocol.events import Failed, Finished
from inference.protocol.generation import GenerationRequest, TokensInput
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingOptions
from tests.inference.engine.faulty_executor import Kind

FAULTY_ENGINE = [sys.executable, "-m", "tests.inference.engine.faulty_engine"]
LOAD_WAIT_S = 60.0


@pytest.fixture
def tiny_llama_dir(byte_level_dir: Path, tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    directory = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(directory)
    for file in byte_level_dir.iterdir():
        shutil.copy(file, directory)
    return directory


def request_of(first: int, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        model="m",
        input=TokensInput(prompts=[[first, 1, 2, 3]]),
        sampling=SamplingOptions(max_tokens=max_tokens, temperature=0.0),
    )


def test_after_a_lost_device_the_model_answers_again(
    redis_url: str,
    redis_db: redis.Redis,
    tiny_llama_dir: Path,
    gateway: Any,
    wait_until: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", "1")
    monkeypatch.setenv("CXX", "false")  # a compiler that fails: nothing native, which takes longer

    def is_ready(num_restarts: int) -> bool:
        replica = gateway.replica()
        if replica is None or replica.status != "ready":
            return False
        return bool(replica.num_restarts == num_restarts)

    service = NeuronService(
        name="n1",
        client=connect(redis_url),
        engine_command=FAULTY_ENGINE,
        discovery=Discovery.run(),
    )
    service.start()
    try:
        spec = LoadSpec(
            job_id="j1",
            model="m",
            source=f"path:{tiny_llama_dir}",
            kv_memory_bytes=4 * 1024**2,
        )
        service.load_model(spec)
        wait_until(lambda: is_ready(num_restarts=0), LOAD_WAIT_S)

        request_id = gateway.submit(request=request_of(Kind.LOSES_THE_DEVICE, 100))
        service.drain_inbox()
        failed = gateway.wait_end(request_id)[-1]
        assert isinstance(failed, Failed)
        assert failed.failure.code == "device_fault"
        assert failed.failure.retry_after_s is not None

        wait_until(lambda: is_ready(num_restarts=1), LOAD_WAIT_S)
        request_id = gateway.submit(request=request_of(7, 5))
        service.drain_inbox()
        assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    finally:
        service.stop()
