"""An answer ends where its model's template ends a turn, whatever the files declare."""

from __future__ import annotations

import shutil
from pathlib import Path

from inference.text.answers.phrases import SPOKEN
from tests.cases import each_case
from tests.inference.neuron.model_texts import OPENS, THINKS, a_chat, model_text, prepared
from tests.inference.text.family_templates import GEMMA, LLAMA, MISTRAL, QWEN

BEGINS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
TURNS = BEGINS + "<|im_end|>\n{% endfor %}"


@each_case(
    ("template", "declared", "ends"),
    [
        (TURNS, [0], [0, 2]),
        (TURNS, [], [2]),
        (TURNS, [2], [2]),
        (BEGINS + "\n{% endfor %}", [0], [0, 1]),
        (BEGINS + "<|im_start|><|endoftext|>{% endfor %}", [0], [0]),
        (BEGINS + " ### {% endfor %}", [0], [0]),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", [0], [0]),
        ("{{ raise_exception('no') }}", [0], [0]),
        ("{{ messages[-1].content }}", [0], [0]),
    ],
)
def test_the_end_of_a_turn_that_no_file_declares(
    byte_level_dir: Path, template: str, declared: list[int], ends: list[int]
) -> None:
    text = model_text(byte_level_dir, chat_template=template, eos_token_ids=declared)
    assert text.report.eos_token_ids == ends
    assert any("behind an answer" in one for one in text.report.warnings) == (ends != declared)
    if template == TURNS:
        assert prepared(text, a_chat()).params.stop_token_ids == ends


TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% for m in messages %}x{% endfor %}"
REFUSES = "{% for m in messages %}{% if TEST %}{{ raise_exception('no') }}{% endif %}{% endfor %}"


@each_case(
    ("template", "problem"),
    [
        *[(family, None) for family in (GEMMA, LLAMA, MISTRAL, QWEN, TEXTS)],
        ("{% if %}", "the model's chat template failed: Expected an expression"),
        (REFUSES.replace("TEST", "loop.first"), "the model's chat template failed: no"),
        (
            REFUSES.replace("TEST", "m.role == 'assistant'"),
            "the model's chat template fails at turn 2 of 3 (assistant after user): no",
        ),
        (NO_SYSTEM, "the model's chat template rewrites or drops system turns"),
        (
            "{{ tools }}{{ tool_calls }}" + REFUSES.replace("TEST", "m.role == 'tool'") + TEXTS,
            "with tools the model's chat template fails at turn 2 of 5 (assistant after user): no",
        ),
        (
            TEXTS + "{% if tools %}x{% endif %}",
            "with tools this model's chat template has no place for tool calls",
        ),
    ],
    ids=lambda value: str(value)[-80:],
)
def test_what_is_wrong_with_a_template_stands_in_the_report(
    byte_level_dir: Path, tmp_path: Path, template: str, problem: str | None
) -> None:
    found = model_text(byte_level_dir, chat_template=template).report.template_problem
    assert found == problem or str(found).startswith(str(problem))
    shutil.copy(byte_level_dir / "tokenizer.json", tmp_path)
    found = model_text(tmp_path).report.template_problem
    assert found == "the model has no chat template; conversations are written as ChatML"


def test_the_fingerprint_is_of_what_answers(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert text.fingerprint == model_text(byte_level_dir).fingerprint
    assert text.fingerprint != model_text(byte_level_dir, dtype="bfloat16").fingerprint
    assert text.fingerprint != model_text(byte_level_dir, chat_template="x").fingerprint


def test_capabilities_are_what_the_files_report(byte_level_dir: Path, thinking_dir: Path) -> None:
    always = {"chat", "completions", "logprobs", "structured_output"}
    takes_tools, thoughts = (
        "{{ tools }}<tool_call>",
        " ".join((SPOKEN.opens[0], "{% if thinking %}", SPOKEN.closes[0], "{% endif %}")),
    )
    for directory, template, more in (
        (byte_level_dir, None, set()),
        (byte_level_dir, takes_tools, {"tool_call"}),
        (byte_level_dir, OPENS, set()),
        (byte_level_dir, thoughts, {"reasoning"}),
        (thinking_dir, THINKS, set()),
        (thinking_dir, OPENS, {"reasoning"}),
        (thinking_dir, OPENS + takes_tools, {"reasoning", "tool_call"}),
    ):
        found = model_text(directory, chat_template=template).capabilities
        assert set(found) == always | more
    assert model_text(byte_level_dir, kind="embedding").capabilities == ["embeddings"]
