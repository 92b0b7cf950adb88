"""Models for the scripted engine: a folder with a small real tokenizer, a chat template and a
script, one for each family of tool calls; and a whole server whose engines follow scripts.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``special`` tokens have no text of their own; ``visible`` ones are single tokens that do."""

    template: str
    special: tuple[str, ...]
    visible: tuple[str, ...] = ()
    bos: str
    eos: str
    image: str = ""
    """What stands for an image in a prompt; empty: it reads text alone."""
    context_tokens: int = 131072


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = ("<think>", "</think>")
CALLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

FAMILIES = {
    "hermes": Family(
        template="hermes.jinja",
        special=CHATML,
        visible=(*THINKING, *CALLS),
        bos="<|endoftext|>",
        eos="<|im_end|>",
    ),
    "llama3": Family(
        template="llama3.jinja",
        special=(
            *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
        ),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        context_tokens=8192,
    ),
    "mistral": Family(
        template="mistral.jinja",
        special=(
            *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            *("[TOOL_CALLS]", "[ARGS]"),
        ),
        bos="<s>",
        eos="</s>",
    ),
    "opened-thinking": Family(
        template="opened_thinking.jinja",
        special=CHATML,
        visible=THINKING,
        bos="<|endoftext|>",
        eos="<|im_end|>",
    ),
    "seeing": Family(
        template="seeing.jinja",
        special=(*CHATML, "<|image_pad|>"),
        bos="<|endoftext|>",
        eos="<|im_end|>",
        image="<|image_pad|>",
    ),
}


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    name: str
    folder: Path

    def answers(
        self,
        when: str,
        *choices: str,
        tokens_per_step: int = 1,
        repeats: bool = False,
        holds: Literal["queue", "prefill"] | None = None,
        token_s: float = 0.0,
    ) -> None:
        """Sets the answer from now on to prompts that hold ``when``. Special tokens are written out
        in it."""
        script = scripts.read_script(self.folder)
        rule = scripts.Rule(
            when=when,
            choices=list(choices),
            tokens_per_step=tokens_per_step,
            repeats=repeats,
            holds=holds,
            token_s=token_s,
        )
        changed = msgspec.structs.replace(script, rules=[*script.rules, rule])
        scripts.write_script(self.folder, changed)

    def hold_load(self, holds: bool) -> None:
        changed = msgspec.structs.replace(scripts.read_script(self.folder), holds_load=holds)
        scripts.write_script(self.folder, changed)

    def takes(self, num_bytes: int) -> None:
        """Sets the memory of its simulated device from its next load on: nine tenths weights, the
        rest KV."""
        kv_bytes = num_bytes // 10
        changed = msgspec.structs.replace(
            scripts.read_script(self.folder), weight_bytes=num_bytes - kv_bytes, kv_bytes=kv_bytes
        )
        scripts.write_script(self.folder, changed)

    def received(self, when: str) -> list[scripts.Received]:
        return [one for one in scripts.read_received(self.folder) if when in one.prompt]

    def moments_s(self, what: Literal["first token", "cancelled"], when: str) -> list[float]:
        """When each sequence with ``when`` in its prompt came to ``what``, on the monotonic clock;
        those that have not yet are missing."""
        sequence_ids = {one.sequence_id for one in self.received(when)}
        return [
            moment.monotonic_s
            for moment in scripts.read_moments(self.folder)
            if moment.what == what and moment.sequence_id in sequence_ids
        ]


def make_model(name: str, family: Family, folder: Path) -> ScriptedModel:
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
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in family.visible])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": family.bos, "eos_token": family.eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text((TEMPLATES_DIR / family.template).read_text())
    script = scripts.Script(
        end_token=family.eos,
        context_tokens=family.context_tokens,
        vision=_vision(tokenizer.token_to_id(family.image)) if family.image else None,
    )
    scripts.write_script(folder, script)
    return ScriptedModel(name, folder)


def _vision(pad_token_id: int) -> VisionInput:
    """Images of at most four tokens."""
    return VisionInput(
        pad_token_id=pad_token_id, patch_px=14, merge=2, min_pixels=28**2, max_pixels=56**2
    )


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
            name: make_model(name, family, scripts_dir / name) for name, family in FAMILIES.items()
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
