"""Models for the scripted engine: a folder with a small real tokenizer, a chat template and a
script; and a whole server whose engines follow scripts.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from inference.protocol.images import VisionInput
from tests.live.scripted import script as scripts
from tests.live.serving import Serve, operate, wait_until_offered

TEMPLATES_DIR = Path(__file__).parent / "templates"
CORPUS = [
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    "What is the weather in Paris? The weather in Paris is sunny.",
    "日本語のテキスト 🙂 naïve café",
]
VOCAB_SIZE = 400


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
OSLO: dict[str, Any] = {"city": "Oslo", "days": 3}
OSLO_CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
)
CLOCK_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>'


CHATML = ("<|endoftext|>", "<|im_start|>", scripts.END_TOKEN)
WORDS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
"""Single tokens that have a text of their own."""


@dataclass(frozen=True, slots=True)
class Family:
    template: str
    context_tokens: int = 131072
    image: str = ""
    """What stands for an image in a prompt; empty: it reads text alone."""


HERMES = Family("hermes")
FAMILIES = {
    "hermes": HERMES,
    "cold": HERMES,
    "small": Family("hermes", context_tokens=8192),
    "opened-thinking": Family("opened_thinking"),
    "seeing": Family("seeing", image="<|image_pad|>"),
}


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    name: str
    folder: Path

    def answers(self, when: str, *choices: str, **how: Any) -> None:
        """Sets the answer from now on to prompts that hold ``when``: see ``Rule``."""
        rule = scripts.Rule(when=when, choices=list(choices), **how)
        self._change(rules=[*scripts.read_script(self.folder).rules, rule])

    def hold_load(self, holds: bool) -> None:
        self._change(holds_load=holds)

    def takes(self, num_bytes: int) -> None:
        """Sets the memory of its simulated device from its next load on: nine tenths weights, the
        rest KV."""
        kv_bytes = num_bytes // 10
        self._change(weight_bytes=num_bytes - kv_bytes, kv_bytes=kv_bytes)

    def _change(self, **fields: Any) -> None:
        script = scripts.read_script(self.folder)
        scripts.write_script(self.folder, msgspec.structs.replace(script, **fields))

    def received(self, when: str) -> list[scripts.Received]:
        return [
            one for one in scripts.recorded(self.folder, scripts.Received) if when in one.prompt
        ]

    def moments_s(self, what: Literal["first token", "cancelled"], when: str) -> list[float]:
        """When each sequence with ``when`` in its prompt came to ``what``, on the monotonic clock;
        those that have not yet are missing."""
        moments = scripts.recorded(self.folder, scripts.Moment)
        return [one.monotonic_s for one in moments if one.what == what and when in one.prompt]


def make_model(name: str, folder: Path, family: Family = HERMES) -> ScriptedModel:
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = [*CHATML, family.image] if family.image else CHATML
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in WORDS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": CHATML[0], "eos_token": scripts.END_TOKEN}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = (TEMPLATES_DIR / f"{family.template}.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    vision = None
    if family.image:  # images of at most four tokens
        token_id = tokenizer.token_to_id(family.image)
        sizes = {"patch_px": 14, "merge": 2, "min_pixels": 28**2, "max_pixels": 56**2}
        vision = VisionInput(pad_token_id=token_id, **sizes)
    script = scripts.Script(context_tokens=family.context_tokens, vision=vision)
    scripts.write_script(folder, script)
    return ScriptedModel(name, folder)


ALIAS, ALIASED = "claude-local", "hermes"
"""Some clients insist on names of their own."""
ENGINE = Path(__file__).parent / "engine.py"


class ScriptedServe(Serve):
    """``serve`` without a model of its own; ``models`` are in the catalogue once it is ready, and
    each is loaded by the first request for it."""

    def __init__(
        self,
        data_dir: Path,
        scripts_dir: Path,
        prices: Mapping[str, int] | None = None,
        **environment: str,
    ) -> None:
        """``prices``: the fields of a catalogue's model that name them, of all of its models."""
        scripts_dir.mkdir()
        self.scripts_dir = scripts_dir
        self.models: Mapping[str, ScriptedModel] = {
            name: make_model(name, scripts_dir / name, family) for name, family in FAMILIES.items()
        }
        self._prices = prices or {}
        command = shlex.join([sys.executable, str(ENGINE)])
        super().__init__(data_dir, "--no-model", HELEXA_ENGINE_COMMAND=command, **environment)

    def wait_ready(self) -> str:
        url = super().wait_ready()
        self._add_models()
        return url

    def _add_models(self) -> None:
        for model in self.models.values():
            source = f"path:{model.folder}"
            operate(self, "POST", "/api/catalogue", name=model.name, source=source, **self._prices)
        operate(self, "POST", "/api/aliases", name=ALIAS, model=ALIASED)
        for name in (*self.models, ALIAS):
            wait_until_offered(self, name, 200)
