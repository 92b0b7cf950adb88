"""The processes of the stages behind a model's first, from the engine's end.

    engine ─ rows ─▶ stage 2 ─ rows ─▶ … ─ rows ─▶ last stage ─ rows ─▶ engine
       └─ control ─▶ each of them

Links are sockets within the host, and ``stage_links`` to others (``stage_specs``). A stage that
ends, or sends nothing for a while, ends the model.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack

import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.divided.children import Child, ChildEnd, ChildProcess, Children, Reply
from inference.engine.divided.row_link import (
    ROWS_IN,
    ROWS_OUT,
    Arrival,
    RowLink,
    RowReader,
)
from inference.engine.divided.stage_messages import (
    AdapterAdded,
    Alive,
    BuildStage,
    Done,
    DropAdapter,
    FallAsleep,
    FromStage,
    JoinStage,
    LinkLost,
    MeasureMemory,
    MeetStage,
    RunStep,
    SettleStage,
    StageAsleep,
    StageBuilt,
    StageMemory,
    StageOpened,
    ToStage,
    WakeUp,
    WatchMemory,
    decode_from_stage,
    message_of_adapter,
)
from inference.engine.divided.stage_specs import (
    StageOfOtherHost,
    are_narrow,
    dial_stage,
    stage_peer,
)
from inference.engine.divided.step_frames import NewKV
from inference.engine.errors import DeviceFault, HangFault, StepFault, UnexpectedFrameError
from inference.link_identities import Purpose
from inference.loading.progress import OnProgress
from inference.models.adapter import AdapterWeights
from inference.models.errors import UnsupportedAdapterError
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes
from inference.stage_links import SecureConnection
from inference.supervised_threads import SupervisedThread

STAGE = "inference.engine.divided.stage_runner"
POLL_S = 0.2
ROWS_END_S = 1.0
"""How long a stage's process may take to end after its rows have ended."""
CHECK_INTERVAL_S = 1.0
SILENT_CHECKS = 8
"""A stage that sends nothing in more checks in a row is stopped or stuck: it sends every second.
Checks are counted, not seconds, since all processes of a host may stand still together."""
SILENCE_S = SILENT_CHECKS * CHECK_INTERVAL_S


class StageProcesses(Children):
    """Only the engine's thread sends steps and asks; adapters come from another thread."""

    def __init__(self, spec: LoadSpec) -> None:
        """Dials the stages of other hosts, all or none. Raises ``StageUnreachableError``."""
        super().__init__()
        self._spec = spec
        self.opened: list[StageOpened] = []
        self.built: list[StageBuilt] = []
        self._on_progress: list[OnProgress] = []
        self._adding = threading.Lock()
        self._answers: dict[int, Future[str]] = {}
        self._num_adapters = 0
        self._silent_checks = [0] * (len(spec.stages) - 1)
        """A message that arrives during a check may be lost: the next one counts."""
        self._dropped: deque[DropAdapter] = deque()
        """Sent before the next message: any thread drops adapters, at any point."""
        self._by_index: dict[int, Child] = {}
        self._first_link: RowLink | None = None
        self._arrivals: RowReader | None = None
        try:
            for index, stage in enumerate(spec.stages):
                if stage.neuron:
                    self._add(index, StageOfOtherHost(self._dial(index, "control")))
        except BaseException:
            self.close()
            raise

    def start(self, num_features: int) -> None:
        """Close it where this raises ``OSError`` or ``StageUnreachableError``."""
        stages = self._spec.stages
        with ExitStack() as theirs:
            writes: dict[int, socket.socket] = {}
            reads: dict[int, socket.socket] = {}
            for index in range(len(stages)):
                behind = (index + 1) % len(stages)
                if not (stages[index].neuron or stages[behind].neuron):
                    writes[index], reads[behind] = socket.socketpair()
            for index in range(1, len(stages)):
                rows = (ROWS_IN, reads.pop(index, None)), (ROWS_OUT, writes.pop(index, None))
                fds = {name: theirs.enter_context(one).fileno() for name, one in rows if one}
                if not stages[index].neuron:
                    self._add(index, ChildProcess(STAGE, fds))
            self.all = [child for _, child in sorted(self._by_index.items())]
        write, read = (
            writes.get(0) or self._dial(1, "rows"),
            reads.get(0) or self._dial(-1, "rows-back"),
        )
        is_narrow = are_narrow(self._spec, 0)
        self._first_link = RowLink(write, num_features, is_narrow=is_narrow)
        incoming = RowLink(read, num_features)
        self._arrivals = RowReader(incoming, "rows-of-stages", self._note_rows_end)

    def _add(self, index: int, end: ChildEnd) -> None:
        stages = self._spec.stages
        where = f" of {stages[index].neuron}" if stages[index].neuron else ""
        child = Child(
            f"stage {index + 1} of {len(stages)}{where}",
            end,
            decode_from_stage,
            on_end=self.lose_child,
            on_message=lambda message: self._note(index - 1, message),
        )
        self._by_index[index] = child
        self.all.append(child)

    def _dial(self, index: int, purpose: Purpose) -> SecureConnection:
        peer = stage_peer(self._spec, self._spec.stages[index])
        assert peer is not None, "else it is on this host"
        return dial_stage(peer, purpose)

    def open(self, frame: JoinStage | MeetStage, on_progress: OnProgress) -> StageOpened:
        """``on_progress`` runs in this thread. Raises ``PartFailedError`` and ``DeviceFault``."""
        child = self.all[len(self.opened)]
        self._on_progress.append(on_progress)
        child.send(frame)
        self.opened.append(child.reply(StageOpened, on_progress))
        return self.opened[-1]

    def begin_build(self, context_tokens: int, *, has_images: bool) -> None:
        self._send_all(BuildStage(context_tokens=context_tokens, has_images=has_images))

    def wait_built(self) -> None:
        """Raises ``PartFailedError`` and ``DeviceFault``."""
        self.built = [
            child.reply(StageBuilt, report)
            for child, report in zip(self.all, self._on_progress, strict=True)
        ]

    def settle(self, stages: Mapping[int, SettleStage]) -> None:
        for index, report in stages.items():
            self._by_index[index].send(report)

    def close(self) -> None:
        super().close()
        if self._first_link is not None:
            self._first_link.close()

    def watch(self, on_lost: Callable[[StepFault], object]) -> None:
        """Also notices stages that are silent for too long."""
        super().watch(on_lost)
        SupervisedThread(self._watch_silence, name="stages-alive").start()

    def new_kv(self, wanted: NewKV) -> None:
        """Raises ``MemoryError`` and ``DeviceFault``."""
        self._ask_all(wanted, Done)

    def run(self, messages: Sequence[RunStep], hidden: torch.Tensor) -> None:
        """``messages``: one for each later stage. Raises ``DeviceFault``."""
        self._send_dropped()
        for child, message in zip(self.all, messages, strict=True):
            child.send(message)
        assert self._first_link is not None, "it was started"
        try:
            self._first_link.send(messages[0].number, hidden)
        except ChannelClosedError as error:
            raise self.lost or DeviceFault(f"the rows of the second stage: {error}") from error

    def next_arrival(self) -> Arrival:
        """In the order of ``run``. Blocks. Raises ``StepFault`` where a stage is gone."""
        assert self._arrivals is not None, "it was started"
        while (arrival := self._arrivals.next(POLL_S)) is None:
            if self.lost is not None:
                raise self.lost
        return arrival

    def add_adapter(self, index: int, weights: AdapterWeights) -> int:
        """``index`` 0 is the second stage; ``weights`` are by its names. Blocks, so call it from
        any thread but the engine's. Raises ``UnsupportedAdapterError`` and ``StepFault``."""
        with self._adding:
            self._num_adapters += 1
            number = self._num_adapters
            answer = self._answers[number] = Future()
        self.all[index].send(message_of_adapter(number, weights))
        while True:
            try:
                refusal = answer.result(POLL_S)
                break
            except TimeoutError:
                if self.lost is not None:
                    raise self.lost from None
        with self._adding:
            del self._answers[number]
        if refusal:
            raise UnsupportedAdapterError(refusal)
        return number

    def drop_adapter(self, number: int) -> None:
        """Any thread; sends nothing by itself."""
        self._dropped.append(DropAdapter(number=number))

    def watch_memory(self, index: int) -> None:
        self.all[index].send(WatchMemory())

    def memory(self, index: int) -> StageMemory:
        self._send_dropped()
        self.all[index].send(MeasureMemory())
        return self.all[index].reply(StageMemory)

    def fall_asleep(self) -> list[tuple[str, AsleepBytes]]:
        """Returns the devices of this host's stages, and the memory that each still holds."""
        held = [answer.held for answer in self._ask_all(FallAsleep(), StageAsleep)]
        stages = zip(self._spec.stages[1:], self.opened, held, strict=True)
        return [(one.device, part) for stage, one, part in stages if not stage.neuron]

    def wake(self) -> None:
        """Raises ``MemoryError`` where a device has no room."""
        self._ask_all(WakeUp(), Done)

    def _ask_all(self, message: ToStage, kind: type[Reply]) -> list[Reply]:
        """All at once; raises after each has answered."""
        self._send_all(message)
        found, failed = [], None
        for child in self.all:
            try:
                found.append(child.reply(kind))
            except MemoryError as error:
                failed = error
        if failed is not None:
            raise failed
        return found

    def _send_all(self, message: ToStage) -> None:
        self._send_dropped()
        self.send(message)

    def _send_dropped(self) -> None:
        while self._dropped:
            self.send(self._dropped.popleft())

    def _note(self, index: int, message: FromStage) -> bool:
        """Runs in the stage's reader. Returns whether the message is an answer to be waited for."""
        self._silent_checks[index] = 0
        match message:
            case Alive():
                return False
            case LinkLost(message=reason):
                self.lose(DeviceFault(f"{self.all[index].name} lost a link of rows: {reason}"))
                return False
            case AdapterAdded(number=number, refusal=refusal):
                with self._adding:
                    answer = self._answers.get(number)
                if answer is None or answer.done():
                    raise UnexpectedFrameError(f"an adapter {number} that nobody adds")
                answer.set_result(refusal)
                return False
        return True

    def _note_rows_end(self, error: ChannelError) -> None:
        """Waits, because a stage whose own socket closes too is reported with how it ended."""
        self.all[-1].is_gone.wait(ROWS_END_S)
        self.lose(DeviceFault(f"the rows of the last stage: {error}"))

    def _watch_silence(self) -> None:
        while self.lost is None:
            time.sleep(CHECK_INTERVAL_S)
            for index, child in enumerate(self.all):
                self._silent_checks[index] += 1
                if self._silent_checks[index] > SILENT_CHECKS:
                    self.lose(HangFault(f"{child.name} has sent nothing for {SILENCE_S:g} s"))
