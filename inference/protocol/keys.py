"""All of helexa's Redis keys, and its Celery queues and tasks.

| key | type | writer → reader |
|---|---|---|
| helexa:neurons | zset name → last heartbeat (unix s) | neuron → gateway, control |
| helexa:neurons:wishes | hash name → JSON DesiredState | control → gateway |
| helexa:neuron:<name>:lease | string, JSON NameLease, expires | neuron → another of its name |
| helexa:neuron:<name>:heartbeat | string, JSON, expires | neuron → gateway, control |
| helexa:neuron:<name>:frames | stream of msgpack InboxFrame, expires | gateway → neuron |
| helexa:neuron:<name>:held | hash gateway → HeldRequests, expires | neuron → gateway |
| helexa:neuron:<name>:preparing | hash request id → epoch, expires | neuron → gateway, neuron |
| helexa:neuron:<name>:downloads | string, JSON CacheReport, expires | neuron → control |
| helexa:neuron:<name>:images:<request> | hash digest:piece → bytes, expires | gateway → neuron |
| helexa:neuron:<name>:log:<id> | list of one EngineLogAnswer, expires | neuron → who asked |
| helexa:neuron:<name>:specs | hash model → JSON LoadSpec | neuron → its next instance |
| helexa:neuron:<name>:events:<gateway> | stream of EventBatch, expires | neuron → gateway |
| helexa:gateway:<id>:alive | string, expires | gateway → neuron |
| helexa:gateway:<id>:marker | string, expires | gateway → itself |
| helexa:turns | string, JSON TimeSlices, expires | control → gateway |
| helexa:waiting | hash gateway → JSON WaitingReport | gateway → control |
| helexa:control:leader | string, the id of the control that leads, expires | controls |
| helexa:refusals:<hour> | hash code and account → number, expires | gateways → pages |
| helexa:limit:<key or account>:<name> | hash of what its limits count, expires | gateways |
| helexa:limit:<key or account>:<name>:open | zset request id → lease, expires | gateways |

An invited neuron may write its own keys alone, so the key shows an event's author. A gateway makes
the stream that a neuron writes its events to, and the neuron adds only to a stream that exists. A
missing marker shows its gateway that Redis has lost its data.

Keys expire by Redis' own clock, which advances while Redis is stopped. So when Redis answers again,
all keys are gone although every process is alive. Each side gets a moment to write its keys before
the other side treats a missing key as a death:

    answered … answered │ pause │ answered ── settling ──▶ settled
                                  a missing key means nothing yet
"""

from __future__ import annotations

import re

NEURON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NEURONS = "helexa:neurons"
NEURON_DESIRED_STATES = "helexa:neurons:wishes"
"""See ``fleet.live.desired_state``. It also names invited neurons."""

HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_EXPIRY_S = 4.0
"""A neuron that has been silent this long is offline."""

GATEWAY_ALIVE_INTERVAL_S = 1.0
GATEWAY_ALIVE_EXPIRY_S = 5.0
"""Neurons cancel a gateway's requests after it."""

EVENT_STREAM_MAX_ENTRIES = 50_000
"""Approximate; a stream grows this long only without a reader."""
EVENTS_FIRST_ENTRY_ID = "0-1"
"""A gateway makes a stream with an empty entry of this id and reads the entries after it."""
EVENTS_EXPIRY_S = 120
"""The expiry of a dead gateway's streams and marker; a stall's limit is far below it."""

INBOX_FRAME_FIELD = b"f"
INBOX_PART_FIELD = b"p"
INBOX_EXPIRY_S = 300
"""The last frame renews it. A living neuron reads frames within a second."""

TASK_DRAIN_INBOX = "neuron.drain_inbox"
TASK_LOAD_MODEL = "neuron.load_model"
TASK_UNLOAD_MODEL = "neuron.unload_model"
TASK_SLEEP_MODEL = "neuron.sleep_model"
TASK_RELEASE_STAGES = "neuron.release_stages"
"""Arguments: the model and the job id of the load whose stages the neuron holds."""
TASK_DROP_ADAPTER = "neuron.drop_adapter"
"""Arguments: the loaded model and the adapter's name."""
TASK_PULL_MODEL = "neuron.pull_model"
TASK_CANCEL_PULL = "neuron.cancel_pull"
TASK_DELETE_CACHED = "neuron.delete_cached"
TASK_TELL_LOG = "neuron.tell_log"

DRAIN_INBOX_EXPIRES_S = 10

TIME_SLICES = "helexa:turns"
TIME_SLICES_EXPIRY_S = 10
"""The promises of a dead control lapse."""
WAITING = "helexa:waiting"
WAITING_INTERVAL_S = 1.0

CONTROL_QUEUE = "control"
CONTROL_LEADER = "helexa:control:leader"


NEURON_KEYS = "helexa:neuron:*"
_OF_GATEWAYS = (b"frames", b"images")


def neuron_of_key(key: bytes) -> str:
    return key.split(b":", 3)[2].decode(errors="replace")


def gateways_write(key: bytes) -> bool:
    return key.split(b":", 4)[3] in _OF_GATEWAYS


neuron_queue = "neuron.{}".format


def queue_keys(name: str) -> list[str]:
    queue = neuron_queue(name)
    return [
        queue,
        *(f"{queue}\x06\x16{priority}" for priority in (3, 6, 9)),
        f"_kombu.binding.{queue}",
        f"_kombu.binding_permanent.{queue}",
    ]


# Called with the names for their places, in this order.
heartbeat_key = "helexa:neuron:{}:heartbeat".format
lease_key = "helexa:neuron:{}:lease".format
inbox_key = "helexa:neuron:{}:frames".format
held_key = "helexa:neuron:{}:held".format
preparing_key = "helexa:neuron:{}:preparing".format
downloads_key = "helexa:neuron:{}:downloads".format
engine_log_key = "helexa:neuron:{}:log:{}".format
images_key = "helexa:neuron:{}:images:{}".format
"""Its gateway deletes it; no other request can refer to its images."""
specs_key = "helexa:neuron:{}:specs".format
events_key = "helexa:neuron:{}:events:{}".format
gateway_alive_key = "helexa:gateway:{}:alive".format
gateway_marker_key = "helexa:gateway:{}:marker".format
limit_counts_key = "helexa:limit:{}:{}".format
limit_open_key = "helexa:limit:{}:{}:open".format


KEPT_AFTER_LIMIT_S = 5.0
"""Neurons keep events this much longer than gateways wait, which detected the stall later."""
SETTLING_S = 5.0
"""Five beats: the time for others to write their keys again."""
MAX_GAP_S = 1.5 * HEARTBEAT_INTERVAL_S
"""The longest pause between two answers in which no key of a living process expires."""


class Continuity:
    """Whether Redis has answered without a pause for long enough to trust missing keys."""

    def __init__(self) -> None:
        self._answered_s: float | None = None
        self._resumed_s: float | None = None
        self._was_interrupted = False

    def interrupted(self) -> None:
        self._was_interrupted = True

    def answered(self, now_s: float) -> None:
        was_long = self._answered_s is not None and now_s - self._answered_s > MAX_GAP_S
        if was_long or self._was_interrupted:
            self._resumed_s = now_s
        self._answered_s = now_s
        self._was_interrupted = False

    def is_settled(self, now_s: float) -> bool:
        return self._resumed_s is None or now_s - self._resumed_s >= SETTLING_S
