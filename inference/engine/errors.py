"""The engine's exceptions.

    EngineError
    ├── IntegrityError        our own accounting contradicts itself: a bug
    ├── ChannelError          a socket between a neuron and an engine process
    │   ├── ChannelClosedError   end of file, or the connection was reset
    │   ├── FrameTooLargeError   more than ``MAX_FRAME_BYTES``: the stream is out of step
    │   ├── BadRowsError         rows that no stage of this model sends: out of step, too
    │   └── UnexpectedFrameError a frame that its sender may not send, or not now
    ├── AdapterError          an adapter cannot be loaded
    ├── GrammarError          a grammar does not compile, or the tokenizer allows none
    ├── DoesNotFitError       not even a short context fits the memory measured
    └── WarmupError           a warm-up sequence failed; the message has its code

Errors of one sequence are events (``SequenceFailed``) instead.
"""

from __future__ import annotations


class EngineError(Exception): ...


class IntegrityError(EngineError): ...


class ChannelError(EngineError): ...


class ChannelClosedError(ChannelError): ...


class FrameTooLargeError(ChannelError): ...


class BadRowsError(ChannelError): ...


class UnexpectedFrameError(ChannelError): ...


class AdapterError(EngineError):
    """The message is written for the client."""


class GrammarError(EngineError):
    """The message is written for the client."""


class DoesNotFitError(EngineError): ...


class WarmupError(EngineError): ...
