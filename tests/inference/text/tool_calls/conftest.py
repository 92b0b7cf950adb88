"""A small byte-level tokenizer in three shapes, as models differ in what their markers are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tokenizers
from llguidance import LLTokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls import json_formats as js
from inference.text.tool_calls.tag_formats import DSML

MARKERS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *(js.CALLS_BEGIN, js.CALLS_END, js.CALL_BEGIN, js.CALL_END, js.SEPARATOR, DSML, '<|"|>'),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_end|>", "<|tool_call_argument_begin|>", "<|tool_call|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call>", "<tool_call|>"),
    *("<start_function_call>", "<end_function_call>", "<escape>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
]
CORPUS = [
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function> [TOOL_CALLS] [ARGS]",
    '{"name": "bash", "parameters": {"command": "ls"}}; I look at the weather.',
]
END_TOKEN_ID = 0


@dataclass(frozen=True)
class Vocabulary:
    """The same tokenizer as the text layer and as llguidance see it."""

    text: Tokenizer
    grammar: LLTokenizer

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int]) -> str:
        return b"".join(map(self.text.bytes_of, token_ids)).decode(errors="replace")


def make_vocabulary(markers: list[str], *, special: bool) -> Vocabulary:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    added = [AddedToken(marker, special=special, normalized=False) for marker in markers]
    tokenizer.add_tokens(added)
    definition = tokenizer.to_str()
    return Vocabulary(Tokenizer(definition, {}), LLTokenizer(definition, eos_token=[END_TOKEN_ID]))


@pytest.fixture(scope="session")
def vocabularies() -> dict[str, Vocabulary]:
    """``special``: markers are special tokens. ``added``: tokens, but not special. ``spelled``:
    no tokens at all."""
    return {
        "special": make_vocabulary(MARKERS, special=True),
        "added": make_vocabulary(MARKERS, special=False),
        "spelled": make_vocabulary([], special=False),
    }


@pytest.fixture(params=["special", "added", "spelled"])
def vocabulary(request: pytest.FixtureRequest, vocabularies: dict[str, Vocabulary]) -> Vocabulary:
    return vocabularies[request.param]
