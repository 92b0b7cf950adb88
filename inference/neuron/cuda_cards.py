"""The CUDA cards of this host, and parts of cards (MIG), as the NVIDIA driver lists them through
NVML. Each is read by itself: one that does not answer hides none of the others. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.loading.host import HostMemory, host_memory
from inference.protocol.heartbeat import DeviceInfo


@dataclass(slots=True)
class CudaCard:
    handle: Any
    info: DeviceInfo


def driver_cuda(nvml: Any) -> str | None:
    try:
        number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def list_cards(nvml: Any) -> tuple[list[CudaCard], list[str]]:
    """Cards in PCI bus order, and a sentence for each card that is left out. Raises ``NVMLError``
    where the driver itself does not answer."""
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    cards, problems = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index, driver))
        except nvml.NVMLError as error:
            problems.append(f"card {index} does not answer and is left out: {error}")
    return cards, problems


def visible_cards(
    cards: list[CudaCard], nvml: Any, environment: Mapping[str, str]
) -> list[CudaCard]:
    """The cards that CUDA_VISIBLE_DEVICES leaves to engines, in its order. Entries are numbers, or
    starts of UUIDs, of cards or of their parts (``MIG-…``); as in CUDA, the first that matches
    nothing ends the list. Of a divided card not named by its parts, CUDA gives a process the first
    part."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [_first_part(card, nvml) for card in cards]
    chosen = []
    for word in listed.replace(" ", "").split(","):
        card = _card_named(word, cards, nvml)
        if card is None:
            break
        chosen.append(card if word.startswith("MIG-") else _first_part(card, nvml))
    return chosen


def card_now(nvml: Any, card: CudaCard, index: int) -> DeviceInfo:
    """Raises ``NVMLError`` where the card no longer answers."""
    handle = card.handle
    milliwatts = _reported(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return msgspec.structs.replace(
        card.info,
        index=index,
        free_memory_bytes=(_own_memory(nvml, handle) or host_memory()).free_bytes,
        utilization_percent=_reported(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature_c=_reported(
            nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        power_w=None if milliwatts is None else milliwatts / 1000,
    )


def _own_memory(nvml: Any, handle: Any) -> HostMemory | None:
    """``None``: unified memory, as on GB10, where NVML does not support the question."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None
    return HostMemory(total_bytes=int(memory.total), free_bytes=int(memory.free))


def _card(nvml: Any, handle: Any, index: int, driver: str) -> CudaCard:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return _measured(nvml, handle, index, f"{major}.{minor}", driver)


def _measured(
    nvml: Any, handle: Any, index: int, capability: str | None, driver: str | None
) -> CudaCard:
    own = _own_memory(nvml, handle)
    memory = own or host_memory()
    info = DeviceInfo(
        index=index,
        kind="cuda",
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_memory_bytes=memory.total_bytes,
        free_memory_bytes=memory.free_bytes,
        compute_capability=capability,
        driver=driver,
        has_host_memory=own is None,
    )
    return CudaCard(handle, info)


def _card_named(word: str, cards: list[CudaCard], nvml: Any) -> CudaCard | None:
    if word.isdigit():
        return cards[int(word)] if int(word) < len(cards) else None
    named: Iterable[CudaCard] = cards
    if word.startswith("MIG-"):
        named = (part for card in cards for part in _parts(card, nvml))
    for one in named:
        if word and _text(nvml.nvmlDeviceGetUUID(one.handle)).startswith(word):
            return one
    return None


def _first_part(card: CudaCard, nvml: Any) -> CudaCard:
    return next(_parts(card, nvml), card)


def _parts(card: CudaCard, nvml: Any) -> Iterator[CudaCard]:
    most = _reported(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle))
    for index in range(most or 0):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
        except nvml.NVMLError:  # no part has this number
            continue
        whole = card.info
        yield _measured(nvml, handle, whole.index, whole.compute_capability, whole.driver)


def _reported(nvml: Any, read: Callable[[], int]) -> int | None:
    """Parts of a card (MIG) do not report some figures."""
    try:
        return int(read())
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
