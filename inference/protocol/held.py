"""Requests that a neuron holds and prepares, and those that may be retried after its death. Pure.

    helexa:neuron:<name>:held         hash gateway ─▶ HeldRequests, once a second: a field for each
                                      gateway that has requests there, and NO_GATEWAY for all others
    helexa:neuron:<name>:preparing    hash request id ─▶ epoch of the instance that prepares it
                                      (or load:<model>, whose tokenizer it reads)

A neuron marks a request before it renders, tokenizes or compiles anything of it and removes the
mark once the engine has it, or it has ended. The marks of a dead instance are the requests that may
have killed it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from inference.protocol.events import Failure

NO_GATEWAY = ""
MAX_HELD = 10_000
MAX_HELD_BYTES = 512 * 1024
"""The most bytes of one list. A longer one is not read."""


class HeldRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Made after the neuron has drained its inbox, so it includes every earlier frame."""

    epoch: str
    beat: int
    """Counts the lists of one epoch: a reader skips a beat that it has already read."""
    request_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_HELD)] = []
    is_behind: bool = False
    """Events for this gateway are unsent: a missing request may have ended."""


def held_requests(
    epoch: str, beat: int, ids_by_gateway: Mapping[str, list[str]], behind: Iterable[str]
) -> dict[str, HeldRequests]:
    """The fields of the hash. ``behind``: gateways with unsent events."""
    nothing = HeldRequests(epoch=epoch, beat=beat)
    held = {NO_GATEWAY: nothing}
    for gateway_id, request_ids in ids_by_gateway.items():
        held[gateway_id] = msgspec.structs.replace(nothing, request_ids=request_ids)
    for gateway_id in behind:
        known = held.get(gateway_id, nothing)
        held[gateway_id] = msgspec.structs.replace(known, is_behind=True)
    return held


encode_held_requests = msgspec.msgpack.Encoder().encode
decode_held_requests = msgspec.msgpack.Decoder(HeldRequests).decode


MARKS_EXPIRY_S = 300
"""After the last mark. A death is detected within seconds."""
BROKE_WORKER = "request_broke_worker"
MAX_DEATHS = 1
"""The most workers that may have died under a request that is retried, each of them under several
requests."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A request's worker died. ``num_worker_deaths`` counts the workers that died while they
    prepared it, this one included."""

    num_worker_deaths: int
    may_deliver_again: bool


def blame(marks: Mapping[str, str], request_ids: Collection[str], num_worker_deaths: int) -> Blame:
    """``marks`` are those of the dead neuron; ``request_ids`` those of the request there whose
    deaths are not counted yet; ``num_worker_deaths`` counts earlier ones. A request without a mark
    was only waiting there."""
    epochs = [marks[request_id] for request_id in request_ids if request_id in marks]
    if not epochs:
        return Blame(num_worker_deaths, may_deliver_again=True)
    all_epochs = list(marks.values())
    was_alone = any(all_epochs.count(epoch) == 1 for epoch in epochs)
    num_deaths = num_worker_deaths + len(epochs)
    return Blame(num_deaths, may_deliver_again=num_deaths <= MAX_DEATHS and not was_alone)


def load_mark(model: str) -> str:
    return f"load:{model}"


def broke_worker(worker: str) -> Failure:
    message = f"{worker} ended while it worked on this request, which is not run again"
    return Failure(code=BROKE_WORKER, message=message)


def decode_marks(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        request_id.decode(errors="replace"): epoch.decode(errors="replace")
        for request_id, epoch in found.items()
    }
