"""The last lines of an engine's log, from its neuron through Redis.

Celery task neuron.tell_log ─▶ the neuron ─▶ one answer in a list of its own ─▶ LPOP
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import msgspec
import redis

from fleet import neuron_client, selectors
from fleet.errors import EngineLogUnavailableError, ReplicaNotFoundError, SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.neuron_reads import NeuronValueError, item_pop
from inference.logs import one_line
from inference.protocol.engine_logs import EngineLogAnswer, decode_engine_log
from inference.protocol.keys import TASK_TELL_LOG, engine_log_key
from inference.redis_link import MAX_VALUE_BYTES

ANSWER_TIMEOUT_S = 3.0
ASK_EXPIRES_S = 10
POLL_INTERVAL_S = 0.05
"""The answer's size is checked before it is read, which a blocking pop cannot do."""
MAX_ANSWER_BYTES = MAX_VALUE_BYTES
DEFAULT_LINES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    neuron: str
    model: str
    lines: tuple[str, ...]
    """Oldest first."""


def engine_log(neuron_name: str, model_name: str, num_lines: int = DEFAULT_LINES) -> EngineLog:
    """``model_name`` may be an alias. Blocks for a round trip to the neuron. Raises
    ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``EngineLogUnavailableError``,
    ``BrokerUnavailableError``, ``SnapshotUnavailableError``."""
    neuron = selectors.neuron_known(neuron_name)
    entry = selectors.catalogue_find(model_name)
    model = model_name if entry is None else entry.name
    ask_id = uuid.uuid4().hex
    neuron_client.send(
        TASK_TELL_LOG, neuron.name, ask_id, model, num_lines, expires_s=ASK_EXPIRES_S
    )
    answer = _wait_for(neuron.name, ask_id)
    if not answer.is_known:
        raise ReplicaNotFoundError(
            f"No engine for {model} has run on {neuron.name} since that was started"
        )
    return EngineLog(neuron=neuron.name, model=model, lines=tuple(map(one_line, answer.lines)))


def _wait_for(neuron_name: str, ask_id: str) -> EngineLogAnswer:
    pop = item_pop(engine_log_key(neuron_name, ask_id), max_bytes=MAX_ANSWER_BYTES)
    give_up_s = time.monotonic() + ANSWER_TIMEOUT_S
    try:
        while (answer := pop.run(live.redis_client())) is None:
            if time.monotonic() > give_up_s:
                raise EngineLogUnavailableError(f"{neuron_name} does not answer: is it away?")
            time.sleep(POLL_INTERVAL_S)
        return decode_engine_log(answer)
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    except (msgspec.DecodeError, NeuronValueError) as error:
        raise EngineLogUnavailableError(f"The answer of {neuron_name} is not understood") from error
