"""The text side of a model that is only a tokenizer directory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from inference.neuron.text.model_text import ModelText
from inference.neuron.text.text_loading import load_text
from inference.protocol.load import LoadSpec
from tests.inference.reports import load_report
from tests.sandbox_workers import WORKERS

CHAT_TEMPLATE = (
    "{% if tools %}<call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""A template with a place for tools, and none for thinking."""


def template_file(template: str) -> str:
    """A file with that text, as a load spec names it. Other processes of the run read it: it is
    whole at any time."""
    folder = Path(tempfile.gettempdir()) / "helexa-test-templates"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(template.encode()).hexdigest()}.jinja"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(template)
    part.replace(path)
    return f"file:{path}"


def model_text(
    directory: Path,
    *,
    chat_template: str | None = None,
    max_output_tokens: int | None = None,
    **report: object,
) -> ModelText:
    """A context of 100 tokens, 1000 in the vocabulary, ended by token 2; ``report`` changes it."""
    spec = LoadSpec(
        job_id="j",
        model="m",
        source="fake:",
        chat_template=None if chat_template is None else template_file(chat_template),
        max_output_tokens=max_output_tokens,
    )
    loaded = load_report(**{"architecture": "fake", "tokenizer_dir": str(directory)} | report)
    return load_text(spec, loaded, WORKERS)
