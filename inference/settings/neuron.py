"""Settings of neurons and of the engines that they start."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from inference.settings import kinds
from inference.settings.setting import Reader, Setting

ALL = "all"


@dataclass(frozen=True, slots=True)
class LoggedBodies:
    accounts: frozenset[str] = frozenset()
    are_all: bool = False

    def include(self, account: str) -> bool:
        return self.are_all or account in self.accounts

    def __str__(self) -> str:
        return ALL if self.are_all else ", ".join(sorted(self.accounts))


@dataclass(frozen=True, slots=True)
class Accounts:
    rule: str = "all, or names of accounts with commas between them"

    def parse(self, word: str) -> LoggedBodies:
        names = frozenset(filter(None, (name.strip() for name in word.split(","))))
        if not names:
            raise ValueError
        return LoggedBodies(are_all=True) if names == {ALL} else LoggedBodies(names)


DEVICE_NAME = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([MGT]i?B)")
SCALES = {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("MGT", start=2)
    for unit, base in (("B", 1000), ("iB", 1024))
}
MIN_BYTES = kinds.MIB


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The most bytes of each device for a neuron's models together. A device without a limit has no
    entry."""

    by_device: tuple[tuple[str, int], ...] = ()

    def of(self, device: str) -> int | None:
        return dict(self.by_device).get(device)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for device, _ in self.by_device)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    rule: str = (
        "a list of devices with sizes like cpu=6GiB,cuda:0=20GiB (cpu or cuda:NUMBER, and from "
        "1MiB, in MiB, GiB, TiB or MB, GB, TB)"
    )

    def parse(self, word: str) -> MemoryLimits:
        limits: dict[str, int] = {}
        for part in word.split(","):
            device, equals, size = (piece.strip() for piece in part.partition("="))
            if not equals or not DEVICE_NAME.fullmatch(device):
                raise ValueError(f"{part.strip()!r} is not DEVICE=SIZE")
            if device in limits:
                raise ValueError(f"{device} has two limits")
            limits[device] = _num_bytes(size)
        return MemoryLimits(tuple(limits.items()))


def _num_bytes(size: str) -> int:
    found = SIZE.fullmatch(size)
    if found is None:
        raise ValueError(f"{size!r} is no size with its unit")
    num_bytes = int(Fraction(found[1]) * SCALES[found[2]])
    if not MIN_BYTES <= num_bytes <= kinds.MAX_BYTES:
        raise ValueError(f"{size} is not between 1MiB and {kinds.MAX_BYTES} bytes")
    return num_bytes


MAX_PORT = 65535
ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+)(?::(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?)?"
)


@dataclass(frozen=True, slots=True)
class StageListen:
    host: str
    """A name or an address of this host for other hosts."""
    first_port: int | None = None
    last_port: int | None = None

    @property
    def ports(self) -> Sequence[int]:
        """The ports to try, in order; 0 is any free one."""
        if self.first_port is None:
            return [0]
        return range(self.first_port, (self.last_port or self.first_port) + 1)


@dataclass(frozen=True, slots=True)
class StageAddress:
    """The listen address of stages for other neurons' engines.

    10.0.0.5                                  any free port there
    10.0.0.5:7400, [2001:db8::5]:7400
    10.0.0.5:7400-7499, box.lan:7400-7499     one of these ports
    """

    rule: str = "HOST, HOST:PORT or HOST:FIRST-LAST, with an address that other hosts reach"

    def parse(self, word: str) -> StageListen:
        found = ADDRESS.fullmatch(word.strip())
        if found is None:
            raise ValueError
        host = found["host"].strip("[]")
        if _is_every_address(host):
            raise ValueError(f"{host} is no address that another host can connect to")
        if found["first"] is None:
            return StageListen(host)
        first = int(found["first"])
        last = int(found["last"] or first)
        if not 1 <= first <= last <= MAX_PORT:
            raise ValueError(f"ports are from 1 to {MAX_PORT}, the lower one first")
        return StageListen(host, first, last)


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


NEURON = frozenset({Reader.NEURON})
ENGINE = frozenset({Reader.ENGINE})

NEURON_DRAIN_S: Setting[int] = Setting(
    name="HELEXA_NEURON_DRAIN_S",
    kind=kinds.WholeNumber(0, 86_400, "seconds"),
    default=300,
    readers=NEURON,
    doc="how long a neuron that was asked to stop continues its running requests: long enough for "
    "an agent's answer. Without any it stops at once, as it does at 0 or a second signal. Give a "
    "service manager a longer stop timeout. Under `serve` it is 0, since the gateway has ended its "
    "requests before",
)
LOG_BODIES: Setting[LoggedBodies] = Setting(
    name="HELEXA_LOG_BODIES",
    kind=Accounts(),
    default=LoggedBodies(),
    default_words="none",
    readers=NEURON,
    doc="accounts whose prompts, calls and broken calls the neuron's log contains at debug level, "
    "masked and bounded; `all`: everyone's. Of others it contains lengths and digests; see "
    "[Requests at debug level](monitoring.md#requests-at-debug-level)",
)
STEP_TIMEOUT_S: Setting[float] = Setting(
    name="HELEXA_STEP_TIMEOUT_S",
    kind=kinds.Decimal(0, kinds.MAX_WAIT_S, "seconds"),
    default=120.0,
    readers=NEURON | ENGINE,
    doc="an engine whose step lasts longer is ended, with its stacks in the log, and started "
    "again; 0 waits without a limit. Loads are not counted",
)
LOAD_STALL_S: Setting[int] = Setting(
    name="HELEXA_LOAD_STALL_S",
    kind=kinds.WholeNumber(0, 86_400, "seconds"),
    default=900,
    readers=NEURON,
    doc="a load or download of which nothing has moved for so long, neither bytes nor tensors nor "
    "its stage, fails with `load_stalled`, as does a download that brings less than 1 MiB in it; "
    "0 waits without a limit",
)
ENGINE_THREADS: Setting[int | None] = Setting(
    name="HELEXA_ENGINE_THREADS",
    kind=kinds.WholeNumber(1, 1024, "threads"),
    default_words="physical cores",
    readers=ENGINE,
    doc="how many threads an engine on CPU computes with",
)
CPU_KV_SHARE: Setting[float | None] = Setting(
    name="HELEXA_CPU_KV_SHARE",
    kind=kinds.Decimal(0.001, 0.9, "parts of 1"),
    default_words="0.15",
    readers=ENGINE,
    doc="how much of the free memory keys and values take on CPU. Unless it is set, past prompts "
    "fill at most twice the weights' size of it "
    "([decision 14](../decisions/0014-past-prompts-take-twice-the-weights.md))",
)
VISION_MAX_PIXELS: Setting[int | None] = Setting(
    name="HELEXA_VISION_MAX_PIXELS",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "pixels"),
    default_words="the model's own, on a CPU at most 589824",
    readers=ENGINE,
    doc="the largest image that a model sees: larger ones are scaled down to it. The smaller, the "
    "fewer tokens an image takes. 0: models get no images, and their towers are not loaded. "
    "Gemma 3 reads every image in one size, which no other number changes; Idefics3 and SmolVLM "
    "scale an image's longer side to its square root and then cut it into tiles, and Pixtral and "
    "Mistral Small 3 reduce the longer side to it",
)
VISION_MIN_PIXELS: Setting[int | None] = Setting(
    name="HELEXA_VISION_MIN_PIXELS",
    kind=kinds.WholeNumber(1, kinds.MAX_COUNT, "pixels"),
    default_words="the model's own",
    readers=ENGINE,
    doc="the smallest image that a model sees: smaller ones are scaled up to it. The larger, the "
    "more of a small image's detail a model reads, and the more tokens it takes. It may not be "
    "above the largest. Idefics3 and SmolVLM scale every image to the largest, whatever this is; "
    "Pixtral and Mistral Small 3 enlarge none",
)
ENGINE_CHECKS: Setting[bool] = Setting(
    name="HELEXA_ENGINE_CHECKS",
    kind=kinds.Flag(),
    default=False,
    readers=ENGINE,
    doc="1: check the block accounting whenever an engine is idle",
)
ENGINE_COMMAND: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_ENGINE_COMMAND",
    kind=kinds.Command(),
    default=(),
    default_words="`python -m inference.engine`",
    readers=NEURON,
    doc="how engines are started, to run them under numactl or a profiler",
)
DEVICE_SOURCE: Setting[str | None] = Setting(
    name="HELEXA_DEVICE_SOURCE",
    kind=kinds.PythonName(),
    default_words="NVIDIA's driver",
    readers=NEURON,
    doc="`MODULE:CALLABLE` in Python, which returns this host's devices in the driver's place: "
    "an object with the methods of `Devices` (`inference/neuron/host/device_sampler.py`)",
)
DEVICE: Setting[str] = Setting(
    name="HELEXA_DEVICE",
    kind=kinds.Choice(("auto", "cpu")),
    default="auto",
    readers=NEURON,
    doc="`cpu`: a neuron looks for no cards and loads on its processors, also where the NVIDIA "
    "driver is broken. Without it models that could have a card are not loaded on such a host",
)
MEMORY_LIMIT: Setting[MemoryLimits] = Setting(
    name="HELEXA_MEMORY_LIMIT",
    kind=DeviceMemory(),
    default=MemoryLimits(),
    default_words="all that is free",
    readers=NEURON,
    doc="how much of each device's memory the models of this neuron may use together, as "
    "`cpu=6GiB,cuda:0=20GiB`; a desktop keeps the rest. Devices that are not named have no limit. "
    "See [Memory and devices](models.md#memory-and-devices)",
)
STAGE_LISTEN: Setting[StageListen | None] = Setting(
    name="HELEXA_STAGE_LISTEN",
    kind=StageAddress(),
    default_words="no stages for other neurons",
    readers=NEURON | ENGINE,
    doc="the address at which this host's stages of models that other neurons serve are reached, "
    "as `10.0.0.5` (any free port) or `10.0.0.5:7400-7499`. Each stage listens on a port of its "
    "own, encrypted and authenticated, until its links are made. Unset: this neuron holds no such "
    "stages",
)
HF_CACHE: Setting[str | None] = Setting(
    name="HELEXA_HF_CACHE",
    kind=kinds.Text("a path"),
    default_words="`HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in the data directory",
    readers=NEURON | ENGINE,
    doc="where models of the hub are downloaded to, and found that other programs have downloaded",
)
HF_HOME: Setting[str | None] = Setting(
    name="HF_HOME",
    kind=kinds.Text("a path"),
    readers=NEURON | ENGINE,
    doc="Hugging Face's directory, as huggingface_hub reads it",
)
HF_HUB_CACHE: Setting[str | None] = Setting(
    name="HF_HUB_CACHE",
    kind=kinds.Text("a path"),
    readers=NEURON | ENGINE,
    doc="where models of the hub are downloaded to, as huggingface_hub reads it",
)
HF_TOKEN: Setting[str | None] = Setting(
    name="HF_TOKEN",
    kind=kinds.Text(),
    is_secret=True,
    readers=NEURON | ENGINE,
    doc="the token for gated models, as huggingface_hub reads it",
)
HF_ENDPOINT: Setting[str | None] = Setting(
    name="HF_ENDPOINT",
    kind=kinds.Text("a URL"),
    readers=NEURON | ENGINE | {Reader.GATEWAY},
    doc="another hub than huggingface.co, as huggingface_hub reads it",
)
HF_HUB_OFFLINE: Setting[str | None] = Setting(
    name="HF_HUB_OFFLINE",
    kind=kinds.Text(),
    readers=NEURON | ENGINE,
    doc="1: download nothing, as huggingface_hub reads it",
)
CC: Setting[str | None] = Setting(
    name="CC",
    kind=kinds.Text("a compiler"),
    default_words="gcc, clang",
    readers=NEURON | ENGINE,
    doc="compiles the launchers of GPU kernels, as Triton reads it",
)
CXX: Setting[str | None] = Setting(
    name="CXX",
    kind=kinds.Text("a compiler"),
    default_words="g++, clang++",
    readers=ENGINE,
    doc="compiles the CPU decoder",
)
