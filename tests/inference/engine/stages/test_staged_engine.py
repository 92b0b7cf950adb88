"""What an engine does with sequences, it does over stages too: grammars, drawing, scores, drafts,
choices, preemption, and cancels in every phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.protocol.engine import (
    CancelSequence,
    EngineStats,
    SequenceCancelled,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.asking import Answers, run
from tests.inference.engine.stages.loads import load, spec_of
from tests.inference.engine.test_engine_grammars import PEOPLE, json_grammar

PROMPT = [(7 * n) % 90 + 1 for n in range(70)]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
LONG = SamplingParams(max_tokens=100, temperature=0.0)
"""Two of these do not fit together: one is preempted, however the prompts fell into steps."""
COMMANDS = [
    SubmitSequence(
        sequence_id="scored",
        token_ids=PROMPT,
        params=SamplingParams(max_tokens=8, temperature=0.0, top_logprobs=3, prompt_logprobs=2),
    ),
    SubmitSequence(
        sequence_id="drawn",
        token_ids=PROMPT[:50],
        params=SamplingParams(
            max_tokens=24, seed=5, top_p=0.9, repetition_penalty=1.2, logit_bias={3: 2.0}
        ),
    ),
    SubmitSequence(
        sequence_id="grammar",
        token_ids=PROMPT[:33],
        params=SamplingParams(max_tokens=90, seed=6, grammar=json_grammar(PEOPLE)),
    ),
    SubmitSequence(
        sequence_id="repeated", token_ids=PROMPT[:20] * 4, params=GREEDY, prediction=PROMPT[:12]
    ),
    SubmitSequence(sequence_id="choice", token_ids=PROMPT, params=GREEDY),
    SubmitSequence(
        sequence_id="other choice", token_ids=PROMPT, params=GREEDY, same_prompt_as="choice"
    ),
    SubmitSequence(sequence_id="long", token_ids=PROMPT[30:], params=LONG),
    SubmitSequence(sequence_id="other long", token_ids=PROMPT[:29:-1], params=LONG),
]


@pytest.fixture(scope="module")
def own_data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("staged-engine")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory


def engine_of(source: Path, data_dir: Path, *ends: int) -> Engine:
    """Makes an engine with blocks for one context and a little more, so that sequences make room
    for others."""
    spec = spec_of(source, *ends, speculation="prompt_lookup", kv_memory_bytes=130_000)
    loaded = load(spec, data_dir)
    assert isinstance(loaded.engine, Engine) and "native" in loaded.report.compiled
    return loaded.engine


def answers(engine: Engine) -> tuple[Answers, EngineStats]:
    """Returns the answers of all of ``COMMANDS`` at once."""
    for command in COMMANDS:
        engine.submit(command)
    found = run(engine)
    assert found.failed == {}
    return found, engine.stats()


def test_stages_answer_as_one_whatever_is_asked(tiny_model_dir: Path, own_data_dir: Path) -> None:
    expected, _ = answers(engine_of(tiny_model_dir, own_data_dir))
    found, stats = answers(engine_of(tiny_model_dir, own_data_dir, 1, 2, 3))
    for of in ("tokens", "logprobs", "scored"):
        assert getattr(found, of) == getattr(expected, of)
    assert len(found.logprobs["scored"]) == 8 and len(found.scored["scored"]) == len(PROMPT) - 1
    assert found.tokens["choice"] == found.tokens["other choice"]
    assert stats.num_preemptions > 0
    assert stats.num_drafted_tokens > 0


def cancel_in_every_phase(engine: Engine) -> None:
    """Sequences are cancelled while they wait, in their prompts, and in their answers."""
    for num_steps in (0, 1, 2, 12):
        for command in COMMANDS:
            engine.submit(command)
        for _ in range(num_steps):
            engine.step()
        for command in COMMANDS:
            engine.cancel(CancelSequence(sequence_id=command.sequence_id))
        outputs = engine.step()  # which checks that nothing is held
        kinds = SequenceCancelled | SequenceStep
        assert all(isinstance(output, kinds) for output in outputs.outputs)
        assert not engine.has_work
        assert (outputs.stats.in_flight, outputs.stats.queue_depth) == (0, 0)


def test_a_cancel_frees_all_that_a_sequence_has(tiny_model_dir: Path, own_data_dir: Path) -> None:
    cancel_in_every_phase(engine_of(tiny_model_dir, own_data_dir, 1, 3))
