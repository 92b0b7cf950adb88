"""One prompt of one session: taken, run as a task that can be cancelled, and answered."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from acp.schema import PromptResponse
from acp.schema import Usage as TokensUsed

from helexa_acp import pickers, updates
from helexa_acp.client_port import ClientPort
from helexa_acp.commands import Command, CommandContext, find_command
from helexa_acp.config import Config
from helexa_acp.conversation.history import Part, Text, ToolResult, Usage
from helexa_acp.conversation.sessions import Phase, Session, StopReason
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import EndpointError
from helexa_acp.rounds.asking import Asker
from helexa_acp.rounds.calls import CallRunner
from helexa_acp.rounds.modes import Mode
from helexa_acp.rounds.turns import TurnRunner
from helexa_acp.selectors import parse_selector
from helexa_acp.service import Sessions

log = logging.getLogger(__name__)
PLAN_TOOLS = frozenset({"write_file", "edit_file"})
PLAN_MENU = """

The plan is written. How to continue:

1. `/mode default`, then "go on": carry it out, asking before each change
2. `/mode bypassPermissions`, then "go on": carry it out without asking
3. stay in plan mode, and name the changes you want
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    config: Config
    endpoints: Endpoints
    sessions: Sessions
    data_dir: Path
    session: Session
    port: ClientPort

    async def prompt(self, parts: tuple[Part, ...]) -> PromptResponse:
        """Cancels the prompt before it, and waits until that one's work has ended. Raises
        BridgeError."""
        session = self.session
        self.sessions.cancel(session)
        asked = session.num_asked
        async with session.lock:
            if session.num_asked != asked or session.phase is Phase.CLOSED:
                return PromptResponse(stop_reason="cancelled")
            used = Usage()
            session.go(Phase.RUNNING)
            session.turn = asyncio.create_task(self._run(parts, used))
            try:
                reason = await self._outcome(session.turn)
            finally:
                session.turn = None
                session.go(Phase.IDLE)
        await self.port.update(updates.session_info(session.title, session.updated_at))
        return PromptResponse(stop_reason=reason, usage=_tokens_used(used))

    async def choose_mode(self, mode: Mode) -> None:
        self.session.mode = mode
        if self.session.hold is not None:
            self.sessions.save(self.session)
        await self.port.update(updates.mode_changed(mode.value))

    async def choose_model(self, model_id: str) -> None:
        """Raises ConfigError."""
        self.session.selector = parse_selector(model_id, self.config)
        await self.port.update(pickers.options_changed(self.config, self.endpoints, self.session))

    async def _outcome(self, turn: asyncio.Task[StopReason]) -> StopReason:
        """How the turn ended. This task may be cancelled itself, when the agent ends."""
        try:
            await asyncio.wait([turn])
        except asyncio.CancelledError:
            turn.cancel()
            await asyncio.wait([turn])
            raise
        if turn.cancelled() or self.session.phase is Phase.CANCELLING:
            return "cancelled"
        return turn.result()

    async def _run(self, parts: tuple[Part, ...], used: Usage) -> StopReason:
        if command := find_command(parts):
            return await self._run_command(*command)
        runner = TurnRunner(
            asker=Asker(
                config=self.config,
                endpoints=self.endpoints,
                data_dir=self.data_dir,
                session=self.session,
                port=self.port,
            ),
            calls=CallRunner(
                config=self.config, data_dir=self.data_dir, session=self.session, port=self.port
            ),
            save=self.sessions.save,
        )
        num_before = len(self.session.history)
        try:
            reason = await runner.run(parts, used)
            if reason == "end_turn" and self._has_planned(num_before):
                await self.port.update(updates.message(Text(PLAN_MENU)))
            return reason
        except EndpointError as error:
            endpoint = self.session.selector.endpoint
            message = f"{endpoint.name} ({endpoint.base_url}): {error}"
            log.warning(
                "session %s: the prompt failed (status %s, code %s): %s",
                *(self.session.session_id, error.status, error.code, message),
            )
            raise EndpointError(message, status=error.status, code=error.code) from error

    def _has_planned(self, num_before: int) -> bool:
        """Whether this prompt wrote a plan: nothing else is written in plan mode."""
        return self.session.mode is Mode.PLAN and any(
            isinstance(turn, ToolResult) and turn.name in PLAN_TOOLS and not turn.is_error
            for turn in self.session.history[num_before:]
        )

    async def _run_command(self, command: Command, argument: str) -> StopReason:
        context = CommandContext(
            self.config, self.endpoints, self.session, self.choose_model, self.choose_mode
        )
        answer = await command.run(context, argument)
        await self.port.update(updates.message(Text(answer)))
        if self.session.hold is not None:
            self.sessions.save(self.session)
        return "end_turn"


def _tokens_used(used: Usage) -> TokensUsed:
    return TokensUsed(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        cached_read_tokens=used.cached_tokens,
        thought_tokens=used.thought_tokens,
    )
