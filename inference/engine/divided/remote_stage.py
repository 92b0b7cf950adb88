"""The process of one stage for another neuron's engine. Its own neuron starts it, as it starts an
engine, with a load spec that has ``stage_of``.

    neuron ── LoadSpec ──▶ listen ─▶ StageListening, before a weight is read
    engine ══ control ═══▶ open ─▶ MeetStage: same files? ─▶ build ─▶ ``stage_runner``
    stages ══ rows ══════▶  the listener is gone once its links are made

It ends by itself when no engine comes in time, when its engine goes and when its neuron does. A
frame that no engine sends ends the process: the engine is another host's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from inference.channel import Channel
from inference.engine.divided.children import ParentLink
from inference.engine.divided.stage_messages import JoinStage, MeetStage, decode_to_stage
from inference.engine.divided.stage_runner import (
    RowEnds,
    StageRunner,
    build_runner,
    open_stage,
)
from inference.engine.divided.stage_specs import (
    check_divided,
    dial_stage,
    expected_links,
    files_digest,
    spec_of_stage,
    stage_behind,
    stage_peer,
    threads_of_stage,
)
from inference.engine.errors import EngineExit, UnexpectedFrameError
from inference.engine.faults import load_failure
from inference.engine.load.load_engine import configure_threads
from inference.engine.load.memory_use import HostGauge
from inference.engine.loop import FINAL_MESSAGE_TIMEOUT_S, Messenger
from inference.environment import forget_secrets
from inference.garbage import freeze_heap
from inference.link_identities import Purpose
from inference.loading.loader import OpenedModel
from inference.protocol.engine import (
    LoadFailedMessage,
    LoadProgressed,
    Shutdown,
    StageListening,
    StageReleased,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, StageUnreachableError
from inference.protocol.load_report import LoadFailure, LoadProgress
from inference.settings.neuron import STAGE_LISTEN
from inference.stage_links import (
    LinkListener,
    LinkTimeoutError,
    SecureConnection,
    address_in_words,
)
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 120.0
NEIGHBOUR_TIMEOUT_S = 3600.0
"""For rows' links. The engine's neuron and the control end stuck loads sooner."""
LINKS_TIMEOUT_S = 30.0
"""For rows' links, which are made before the engine has any stage built."""


def hold_stage(spec: LoadSpec, data_dir: Path, messenger: Messenger) -> EngineExit:
    SupervisedThread(lambda: _obey(messenger), name="stage-commands", restarts=False).start()
    gauge, holder = HostGauge(), None
    try:
        check_divided(spec)
        listener, address = listen(spec, os.environ)
        messenger.send(StageListening(address=address))
        try:
            control = listener.accept("control", ENGINE_TIMEOUT_S)
        except LinkTimeoutError as error:
            return _release(messenger, f"no engine came: {error}")
        holder = _Holder(spec, data_dir, messenger, control, listener)
        runner = holder.load(gauge)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the neuron is sent it
        failure = load_failure(error, f"a stage of {spec.model}")
        messenger.send(LoadFailedMessage(failure=failure))
        if holder is not None:
            holder.report(failure)
        messenger.flush()
        return EngineExit.FAILED
    if runner is None:
        return _release(messenger, "its engine has gone while it loaded")
    freeze_heap()
    runner.run()
    return _release(messenger, "its engine has gone")


def listen(spec: LoadSpec, environment: Mapping[str, str]) -> tuple[LinkListener, str]:
    """Listens at the first free port; returns the address in words. Raises ``BadSourceError``."""
    where = STAGE_LISTEN.read(environment)
    if where is None:
        raise BadSourceError(
            f"this neuron holds no stages for others: set {STAGE_LISTEN.name} to an address of its "
            "host"
        )
    assert spec.link_identity is not None, "it was checked"
    problem: OSError | None = None
    for port in where.ports:
        try:
            listener = LinkListener((where.host, port), spec.link_identity, expected_links(spec))
            return listener, address_in_words(where.host, listener.port)
        except OSError as error:
            problem = error
        except ValueError as error:
            raise BadSourceError(f"the certificates of this stage: {error}") from error
    raise BadSourceError(f"{STAGE_LISTEN.name}: no port of {where.host} is free: {problem}")


class _Holder:
    def __init__(
        self,
        spec: LoadSpec,
        data_dir: Path,
        messenger: Messenger,
        control: SecureConnection,
        listener: LinkListener,
    ) -> None:
        assert spec.stage_of is not None
        self._spec = spec
        self._data_dir = data_dir
        self._messenger = messenger
        self._listener = listener
        self._index = spec.stage_of.index
        self._engine = ParentLink(Channel(control), decode_to_stage, self._end)
        self._links: Future[dict[Purpose, SecureConnection]] = Future()
        self._behind: SecureConnection | None = None

    def load(self, gauge: HostGauge) -> StageRunner | None:
        SupervisedThread(self._accept, name="stage-links", restarts=False).start()
        join = JoinStage(
            spec=spec_of_stage(self._spec, self._index),
            stage=self._index,
            cache_dir=str(self._data_dir / "models"),
            native_cache_dir=str(self._data_dir / "cache" / "native"),
            num_threads=threads_of_stage(configure_threads(), self._spec, self._index),
        )
        torch.set_num_threads(join.num_threads)
        opened = open_stage(join, self._note_progress)
        forget_secrets(os.environ)  # all downloads are done
        meet = self._engine.receive()
        if meet is None:
            return None
        if not isinstance(meet, MeetStage):
            raise UnexpectedFrameError(f"{type(meet).__name__} before the stage was met")
        self._meet(meet, opened)
        return build_runner(
            join, opened, self._engine, self._row_ends, gauge, on_event=self._messenger.send
        )

    def report(self, failure: LoadFailure) -> None:
        self._engine.send(LoadFailedMessage(failure=failure))

    def _meet(self, meet: MeetStage, opened: OpenedModel) -> None:
        if meet.files_digest != files_digest(opened):
            opened.close()
            raise BadFileError(
                f"{self._spec.source}: this neuron has other files of it than the engine's. Name "
                "the file and the revision in the model's entry"
            )
        behind = stage_behind(self._spec, self._index)
        if behind.neuron:
            addressed = msgspec.structs.replace(behind, address=meet.address_behind)
            peer = stage_peer(self._spec, addressed)
            assert peer is not None, "it has a neuron"
            self._behind = dial_stage(peer, "rows")

    def _row_ends(self) -> RowEnds:
        try:
            links = self._links.result(LINKS_TIMEOUT_S)
        except (LinkTimeoutError, OSError) as error:  # TimeoutError among them
            stage = f"stage {self._index + 1} of {len(self._spec.stages)}"
            why = str(error) or f"not all came within {LINKS_TIMEOUT_S:g} s"
            raise StageUnreachableError(f"the links for rows of {stage}: {why}") from error
        return links["rows"], links["rows-back"] if self._behind is None else self._behind

    def _accept(self) -> None:
        try:
            self._links.set_result(self._listener.accept_all(NEIGHBOUR_TIMEOUT_S))
        except (LinkTimeoutError, OSError) as error:
            self._links.set_exception(error)

    def _note_progress(self, progress: LoadProgress) -> None:
        self._messenger.send(LoadProgressed(progress=progress))
        self._engine.send(LoadProgressed(progress=progress))

    def _end(self) -> NoReturn:
        """Called by the thread that notices that the engine is gone: the main thread may
        compute."""
        os._exit(_release(self._messenger, "its engine has gone"))


def _release(messenger: Messenger, reason: str) -> EngineExit:
    log.info("this stage ends: %s", reason)
    messenger.send(StageReleased(reason=reason))
    messenger.flush(FINAL_MESSAGE_TIMEOUT_S)
    return EngineExit.OK


def _obey(messenger: Messenger) -> None:
    while not isinstance(command := messenger.inbox.get(), Shutdown):
        log.warning("a stage of another engine takes no %s", type(command).__name__)
    os._exit(EngineExit.OK)
