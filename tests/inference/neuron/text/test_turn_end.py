"""An answer ends where its model's template ends a turn, whatever the files declare."""

from __future__ import annotations

from pathlib import Path

from inference.neuron.text.prompts import prepare
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import a_chat, request_for_model

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


def test_requests_stop_there(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template=TURNS, eos_token_ids=[0])
    prepared = prepare(request_for_model(input=a_chat()), text)
    assert prepared.params.stop_token_ids == [0, 2]
