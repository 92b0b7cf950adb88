"""What a scripted engine answers, as a file that tests write and the engine reads.

    folder/script.json      the rules, read again for every sequence
    folder/received.jsonl   what the engine was asked to run, one ``Received`` a line
    folder/moment.jsonl     what became of it and when, one ``Moment`` a line

The contract between ``engine`` (one process) and ``model`` (the tests).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from inference.protocol.engine import SamplingParams
from inference.protocol.images import VisionInput

END_TOKEN = "<|im_end|>"


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to every prompt that holds ``when``. Special tokens are written out in it."""

    when: str
    choices: list[str]
    """The i-th answer to a prompt is choice i, round and round."""
    tokens_per_step: int = 1
    repeats: bool = False
    """The answer starts over instead of ending."""
    token_s: float = 0.0
    """The time from one step of a sequence to its next."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The last rule that fits a prompt counts."""

    context_tokens: int
    rules: list[Rule] = []
    holds_load: bool = False
    """The engine is loading, a quarter of its weights done, for as long as this is true."""
    weight_bytes: int = 0
    """What it takes of its simulated device when it loads, KV left out. It refuses a load where
    that is not free."""
    vision: VisionInput | None = None
    """How it takes images; ``None``: it reads text alone."""
    kv_bytes: int = 0
    """What it takes for KV where the load spec names no number and so much may be taken."""

    def rule_for(self, prompt: str) -> Rule | None:
        return next((rule for rule in reversed(self.rules) if rule.when in prompt), None)


class Received(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    """The tokens as text, special ones included."""
    num_prompt_tokens: int
    num_images: int = 0
    params: SamplingParams


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    what: Literal["first token", "cancelled"]
    """A sequence that is cancelled holds nothing from then on."""
    monotonic_s: float
    """The time on the clock that all processes of a machine share."""


Record = TypeVar("Record", Received, Moment)


def read_script(folder: Path) -> Script:
    return msgspec.json.decode((folder / "script.json").read_bytes(), type=Script)


def write_script(folder: Path, script: Script) -> None:
    """Whole or not at all: an engine may be reading."""
    partial = folder / "script.json.partial"
    partial.write_bytes(msgspec.json.encode(script))
    partial.replace(folder / "script.json")


def append(folder: Path, record: Received | Moment) -> None:
    with _file(folder, type(record)).open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def recorded(folder: Path, kind: type[Record]) -> list[Record]:
    """Whole lines alone: the engine may be writing the next."""
    file = _file(folder, kind)
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


def _file(folder: Path, kind: type[Received | Moment]) -> Path:
    return folder / f"{kind.__name__.lower()}.jsonl"
