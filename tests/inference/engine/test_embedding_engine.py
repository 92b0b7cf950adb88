"""The embedding engine without a model: its executor gives each input's length as the vector; whose
inputs share a forward; and from a directory to what transformers gives: vectors and scores."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from inference.engine.embedding_engine import (
    MAX_QUEUED_TOKENS,
    EmbeddingEngine,
    EmbeddingJob,
    EmbeddingQueue,
    Row,
)
from inference.engine.embedding_load import EmbeddingRunner, embedding_report, load_embedding_engine
from inference.engine.errors import DeviceFault, StepFault
from inference.engine.faults import SUSPICIOUS_STEPS, recover
from inference.engine.load.load_engine import load_engine
from inference.engine.waiting_queue import STEP_S, SchedulerLimits
from inference.loading.loader import open_model
from inference.loading.tokenizer_files import separator_of_pairs
from inference.neuron.text.inputs import prepare_scoring
from inference.neuron.text.model_text import load_text
from inference.protocol import engine as protocol
from inference.protocol.generation import PairsInput, ScoreRequest
from tests.cases import each_case
from tests.inference.engine.conftest import cpu_spec
from tests.sandbox_workers import WORKERS

NOT_A_NUMBER = 13
"""An input that begins with this token id has no vector."""
TOO_LARGE, LOSES_THE_DEVICE = 14, 15


class FakeExecutor:
    """Runs a thousand tokens a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.batches: list[list[int]] = []

    def embed(self, rows: Sequence[Row]) -> list[bytes | None]:
        lengths = [len(row.token_ids) for row in rows]
        self.batches.append(lengths)
        first_ids = [row.token_ids[0] for row in rows]
        if TOO_LARGE in first_ids:
            raise MemoryError
        if LOSES_THE_DEVICE in first_ids:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.now_s += len(rows) * max(lengths) / 1000
        found = zip(first_ids, lengths, strict=True)
        return [None if first == NOT_A_NUMBER else bytes([length]) for first, length in found]

    def recover(self, error: Exception) -> StepFault:
        return recover(error, "cpu")


def engine_of(executor: FakeExecutor, **limits: float) -> EmbeddingEngine:
    return EmbeddingEngine(
        executor,
        SchedulerLimits(prefill_tokens_per_step=1600, target_step_s=STEP_S, **limits),  # type: ignore[arg-type]
        max_input_tokens=100,
        vocab_size=50,
        dimensions=8,
        clock=lambda: executor.now_s,
    )


def command(name: str, *lengths: int, first: int = 1, **asked: Any) -> protocol.EmbedSequences:
    prompts = [[first] + [1] * (length - 1) for length in lengths]
    return protocol.EmbedSequences(sequence_id=name, prompts=prompts, **asked)


def run(engine: EmbeddingEngine) -> dict[str, object]:
    ended: dict[str, object] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            assert output.sequence_id not in ended
            ended[output.sequence_id] = output
    return ended


@each_case(
    ("first", "lengths", "code"),
    [
        (1, [3, 90, 7, 60], ""),
        (NOT_A_NUMBER, [20] * 200, "numerical_error"),
        (TOO_LARGE, [5, 20, 6], "out_of_memory"),
    ],
)
def test_vectors_come_in_order_and_an_input_at_fault_fails_its_request_alone(
    first: int, lengths: list[int], code: str
) -> None:
    executor = FakeExecutor()
    engine = engine_of(executor)
    engine.cancel(protocol.CancelSequence(sequence_id="nobody"))
    engine.submit(command("a", *lengths, first=first))
    engine.submit(command("good", 50, *[20] * 9))
    ended = run(engine)
    good = [b"\x32", *[b"\x14"] * 9]
    assert ended["good"] == protocol.SequencesEmbedded(sequence_id="good", vectors=good)
    if code:
        assert isinstance(failed := ended["a"], protocol.SequenceFailed) and failed.code == code
        return
    vectors = [b"\x03", b"\x5a", b"\x07", b"\x3c"]
    assert ended["a"] == protocol.SequencesEmbedded(sequence_id="a", vectors=vectors)
    assert max(len(batch) for batch in executor.batches) > 1


def test_steps_become_as_long_as_a_cancel_may_take() -> None:
    executor = FakeExecutor()
    engine = engine_of(executor)
    engine.submit(command("a", *[20] * 400))
    for _ in range(10):
        engine.step()
    before_s = executor.now_s
    engine.step()
    assert executor.now_s - before_s <= 1.1 * STEP_S
    assert engine.stats().prefill_tokens_per_s == pytest.approx(1000)
    engine.cancel(protocol.CancelSequence(sequence_id="a"))
    (cancelled,) = engine.step().outputs
    assert isinstance(cancelled, protocol.SequenceCancelled)
    num_rows = sum(map(len, executor.batches))
    assert 0 < num_rows < 400
    assert cancelled.used == protocol.SequenceUsage(num_prompt_tokens=20 * num_rows)
    assert not engine.has_work
    assert (engine.stats().in_flight, engine.stats().queue_depth) == (0, 0)


@each_case(
    ("prompts", "dimensions", "code"),
    [
        *((prompts, None, "bad_token_id") for prompts in ([], [[1], []], [[1], [50]], [[-1]])),
        ([[1] * 5, [1] * 101], None, "context_length_exceeded"),
        ([[1] * 5], 9, "engine_error"),
    ],
)
def test_refusals(prompts: list[list[int]], dimensions: int | None, code: str) -> None:
    executor = FakeExecutor()
    engine = engine_of(executor)
    engine.submit(protocol.EmbedSequences(sequence_id="a", prompts=prompts, dimensions=dimensions))
    (output,) = engine.step().outputs
    assert output.code == code
    assert not engine.has_work and not executor.batches


def test_a_full_queue_and_waiting_too_long() -> None:
    engine = engine_of(FakeExecutor(), max_queue_depth=2, max_running=1, max_queue_wait_s=0.5)
    for name, lengths in (("a", [100] * 40), ("b", [5]), ("c", [5])):
        engine.submit(command(name, *lengths))
    assert engine.stats().queue_depth == 2
    ended = run(engine)
    codes = [getattr(ended[name], "code", "") for name in "abc"]
    assert codes == ["", "queue_timeout", "queue_full"]


def test_a_device_that_gives_no_numbers_any_more_is_not_trusted() -> None:
    engine = engine_of(FakeExecutor())
    for index in range(SUSPICIOUS_STEPS - 1):
        engine.submit(command(f"a{index}", 5, first=NOT_A_NUMBER))
        run(engine)
    for one, first in ((engine, NOT_A_NUMBER), (engine_of(FakeExecutor()), LOSES_THE_DEVICE)):
        one.submit(command("last", 5, first=first))
        with pytest.raises(DeviceFault):
            run(one)


def test_vectors_are_bytes_and_leading_dimensions_brought_to_length_one() -> None:
    nan, inf = float("nan"), float("inf")
    vectors = torch.tensor([[0.6, 0.0, 0.8], [1.0, nan, 0.0], [0.0, inf, 1.0]])
    model: Any = SimpleNamespace(embed=lambda prompts: vectors[: len(prompts)])
    for dimensions, vector in ((None, (0.6, 0.0, 0.8)), (2, (1.0, 0.0))):
        asked = EmbeddingJob(command("a", 2, 1, 1, dimensions=dimensions), deadline_s=0.0)
        found = EmbeddingRunner(model).embed([Row(asked, index) for index in range(3)])
        assert found[0] is not None and found[1:] == [None, None]
        assert struct.unpack(f"<{len(vector)}f", found[0]) == pytest.approx(vector)


def job(name: str, *lengths: int, deadline_s: float = 60.0, account: str = "") -> EmbeddingJob:
    return EmbeddingJob(command(name, *lengths, account=account), deadline_s=deadline_s)


def queue_of(*jobs: EmbeddingJob, **limits: int) -> EmbeddingQueue:
    queue = EmbeddingQueue(SchedulerLimits(**limits))
    for one in jobs:
        queue.add(one)
    return queue


def names(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row.job.sequence_id, row.index) for row in rows]


def test_batches() -> None:
    for jobs, step_tokens, batches in (
        # The longest first, and what is about as long joins.
        (
            [("a", 10, 40, 21, 19), ("b", 5, 30), ("c", 50)],
            *(1000, [[("a", 1), ("b", 1), ("a", 2)], [("b", 0)]]),
        ),
        # A batch with its padding stays within the step; one input may be longer than it.
        ([("a", 40, 39, 38, 37)], 120, [[("a", 0), ("a", 1), ("a", 2)]]),
        ([("a", 500)], 100, [[("a", 0)]]),
        # Jobs take turns.
        (
            [("large", *[100] * 50), ("small", 3)],
            200,
            [[("large", 49), ("large", 48)], [("small", 0)], [("large", 47), ("large", 46)]],
        ),
    ):
        queue = queue_of(*(job(*one) for one in jobs))
        assert [names(queue.take_batch(step_tokens)) for _ in batches] == batches


def test_room_and_what_is_overdue() -> None:
    queue = queue_of(max_queue_depth=4, max_running=1)
    for index in range(3):
        assert not queue.is_full_for("burst")
        queue.add(job(f"burst{index}", 10, account="burst"))
    assert queue.is_full_for("burst"), "one account may have half of the queue"
    assert not queue.is_full_for("other") and queue.has_room(10)

    queue = queue_of(max_queue_depth=1)
    assert queue.has_room(10 * MAX_QUEUED_TOKENS)
    queue.add(job("a", 10, 10, deadline_s=1.0))
    assert not queue.has_room(1)
    queue.take_batch(10)
    assert queue.has_room(1) and not queue.has_room(MAX_QUEUED_TOKENS)
    queue.add(late := job("b", 100, deadline_s=2.0))
    assert queue.overdue(1.5) == [], "only what has not started"
    assert queue.overdue(2.0) == [late]
    # A burst of jobs delays another account by one batch.
    burst = [job(f"burst{index}", *[100] * 20, account="burst") for index in range(50)]
    queue = queue_of(*burst, max_running=8)
    queue.take_batch(200)
    queue.add(job("single", 3, account="single"))
    assert [("single", 0)] in [names(queue.take_batch(200)) for _ in range(2)]
    # What anonymous callers got meanwhile makes two accounts no more equal.
    anonymous = EmbeddingJob(command("x", *[100] * 9, is_anonymous=True), deadline_s=60.0)
    queue = queue_of(anonymous, served := job("a0", 100, account="a"))
    assert names(queue.take_batch(100)) == [("a0", 0)]
    queue.remove(served)
    assert {name for _ in range(4) for name, _ in names(queue.take_batch(100))} == {"x"}
    for account in "ab":
        queue.add(job(account, 100, account=account))
    assert [names(queue.take_batch(100)) for _ in range(2)] == [[("b", 0)], [("a", 0)]]


@given(
    jobs=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=6),
    max_tokens=st.integers(1, 100),
    max_running=st.integers(1, 3),
)
def test_every_input_runs_once(jobs: list[list[int]], max_tokens: int, max_running: int) -> None:
    made = [job(str(number), *lengths) for number, lengths in enumerate(jobs)]
    queue = queue_of(*made, max_running=max_running)
    left = {(str(n), i) for n, lengths in enumerate(jobs) for i in range(len(lengths))}
    while rows := queue.take_batch(max_tokens):
        lengths = [len(row.token_ids) for row in rows]
        assert lengths == sorted(lengths, reverse=True)
        assert len(rows) == 1 or len(rows) * lengths[0] <= max_tokens
        assert 2 * lengths[-1] >= lengths[0]
        assert queue.num_started <= max_running
        for row in rows:
            left.remove((row.job.sequence_id, row.index))
            row.job.vectors[row.index] = b""
        for one in {id(row.job): row.job for row in rows}.values():
            if one.is_done:
                queue.remove(one)
    assert (len(queue), left) == (0, set())


WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "what", "is", "red", "blood", "grass", "a", "rose"]
PAIRS = [("what is red", "blood"), ("what is red", "a rose is a rose"), ("what is red", "grass")]


SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "num_labels": 1,
}


def save(directory: Path, made: type[Any], model_type: str, **fields: Any) -> Any:
    torch.manual_seed(11)
    fields = SIZES | fields
    if model_type == "qwen3":
        fields |= {"num_key_value_heads": 2, "head_dim": 8}
    model = made.from_config(AutoConfig.for_model(model_type, **fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(WORDS[:3])
    if model_type != "qwen3":
        second = "$B:1 [SEP]:1" if model_type == "bert" else "$B [SEP]"
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair=f"[CLS] $A [SEP] {second}",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    return model


def vectors_of(engine: EmbeddingEngine, asked: protocol.EmbedSequences) -> list[Any]:
    engine.submit(asked)
    ended = run(engine)[asked.sequence_id]
    assert isinstance(ended, protocol.SequencesEmbedded), ended
    return [np.frombuffer(vector, "<f4") for vector in ended.vectors]


@torch.inference_mode()
def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    """Of a decoder without the head that generates: it pools by the last token."""
    reference = save(tmp_path, AutoModel, "qwen3", is_matryoshka=True)
    loaded = load_engine(cpu_spec(tmp_path), tmp_path / "data", lambda _: None)
    report, engine = loaded.report, loaded.engine
    assert (report.kind, report.architecture, report.is_matryoshka) == ("embedding", "qwen3", True)
    assert (report.embedding_dimensions, report.context_tokens) == (32, 32)
    assert report.estimated_bytes == report.weight_bytes
    assert report.actual_bytes == report.weight_bytes + report.memory_correction_bytes > 0
    prompts = [[5, 6, 7], [9], [3] * 20]
    last = [reference(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    for dimensions in (None, 8):
        asked = protocol.EmbedSequences(sequence_id="it", prompts=prompts, dimensions=dimensions)
        expected = torch.nn.functional.normalize(torch.stack(last)[:, :dimensions], dim=-1)
        assert np.allclose(np.stack(vectors_of(engine, asked)), expected, atol=1e-5)


@each_case("model_type", ["bert", "xlm-roberta", "modernbert", "qwen3"])
@torch.inference_mode()
def test_scores_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    """Of each pair by itself, token types as the tokenizer has them."""
    reference = save(tmp_path, AutoModelForSequenceClassification, model_type)
    spec = cpu_spec(tmp_path)
    opened = open_model(spec, tmp_path / "cache", lambda progress: None)
    engine, model = load_embedding_engine(spec, opened, lambda progress: None)
    report = embedding_report(opened, model, 0.0)
    assert (report.kind, report.embedding_dimensions) == ("reranker", None)
    text = load_text(spec, report, WORKERS)
    assert text.capabilities == ["rerank"]
    pairs = PairsInput(firsts=[PAIRS[0][0]], seconds=[second for _, second in PAIRS])
    prompts = prepare_scoring(ScoreRequest(model="m", input=pairs), text)
    found = vectors_of(engine, protocol.EmbedSequences(sequence_id="s", prompts=prompts))
    expected, tokenizer = [], Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for pair in PAIRS:
        encoded = tokenizer.encode(*pair)
        inputs = {"input_ids": torch.tensor([encoded.ids])}
        if model_type == "bert":
            inputs["token_type_ids"] = torch.tensor([encoded.type_ids])
        expected.append(float(reference(**inputs).logits[0, 0].sigmoid()))
    scores = [float(vector[0]) for vector in found]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len(set(scores)) == len(PAIRS)
    # Looked for where tokens have types.
    if model_type in ("bert", "xlm-roberta"):
        assert separator_of_pairs(tmp_path) == (2 if model_type == "bert" else None)
