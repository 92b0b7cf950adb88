"""The engine's exceptions.

    EngineError
    ├── IntegrityError        our own accounting contradicts itself: a bug
    ├── AdapterError          an adapter cannot be loaded
    ├── GrammarError          a grammar does not compile, or the tokenizer allows none
    ├── DoesNotFitError       not even a short context fits the memory measured
    └── WarmupError           a warm-up sequence failed; the message has its code
    ChannelError
    ├── BadRowsError          rows that no stage of this model sends: out of step
    └── UnexpectedFrameError  a frame that its sender may not send, or not now

Errors of one sequence are events (``SequenceFailed``) instead.
"""

from __future__ import annotations

from inference.channel import ChannelError


class EngineError(Exception): ...


class IntegrityError(EngineError): ...


class BadRowsError(ChannelError): ...


class UnexpectedFrameError(ChannelError): ...


class AdapterError(EngineError):
    """The message is written for the client."""


class GrammarError(EngineError):
    """The message is written for the client."""


class DoesNotFitError(EngineError): ...


class WarmupError(EngineError): ...
