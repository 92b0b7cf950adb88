"""The last lines of an engine's log, requested from its neuron.

neuron.tell_log [ask_id, model, num_lines] ─▶ one EngineLogAnswer, pushed to engine_log_key
"""

from __future__ import annotations

import msgspec

MAX_LINES = 5000
ANSWER_EXPIRY_S = 30


class EngineLogAnswer(msgspec.Struct, frozen=True, kw_only=True):
    is_known: bool
    """Whether an engine for that model has run in this instance of the neuron."""
    lines: list[str] = []
    """The last is the newest; secrets are hidden."""


encode_engine_log = msgspec.json.Encoder().encode
decode_engine_log = msgspec.json.Decoder(EngineLogAnswer).decode
