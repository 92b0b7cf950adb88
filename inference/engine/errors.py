"""What can go wrong in the engine, as exceptions.

    EngineError
    ├── IntegrityError        our own accounting contradicts itself: a bug
    ├── ChannelError
    │   ├── ChannelClosedError   the other end of the socket is gone
    │   ├── FrameTooLargeError   a length prefix that cannot be a frame of ours
    │   ├── BadRowsError         rows, or a header of some, that no stage of this model sends
    │   └── UnexpectedFrameError a frame that its sender may not send, or not now
    ├── AdapterError          an adapter cannot be loaded
    ├── GrammarError          a grammar does not compile, or the tokenizer allows none
    ├── DoesNotFitError       not even a short context fits the memory measured
    └── WarmupError           a fresh model could not answer

What happens to one sequence is not an exception but an event (``SequenceFailed``).
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of this package's errors."""


class IntegrityError(EngineError):
    """Block accounting or queues contradict each other."""


class ChannelError(EngineError):
    """Base of what a socket between a neuron and an engine process can do to us."""


class ChannelClosedError(ChannelError):
    """End of file, or the connection was reset."""


class FrameTooLargeError(ChannelError):
    """A frame announced more bytes than ``MAX_FRAME_BYTES``: the stream is out of step."""


class BadRowsError(ChannelError):
    """Rows were announced that cannot be this model's: the stream is out of step."""


class UnexpectedFrameError(ChannelError):
    """The other end sent a frame that it may not send, or not now."""


class AdapterError(EngineError):
    """The message is written for the clients who asked for it."""


class GrammarError(EngineError):
    """The message is written for the client whose grammar it is."""


class DoesNotFitError(EngineError):
    """The KV memory that was measured cannot hold a useful context."""


class WarmupError(EngineError):
    """A warm-up sequence failed; the message has its code."""
