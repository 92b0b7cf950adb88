"""Python's garbage collector, kept from looking through what a process keeps for good.

A full collection looks at every object that there is. The modules that a gateway, a neuron or an
engine imports are some 350,000 of them, and looking at those stops every thread for about 0.1 s,
streams included.
Imports no torch and no Django.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_is_done = False


def keep_imports() -> None:
    """What is there by now is looked at no more. For a process that has imported what it needs; it
    does nothing when it is called again, so that nothing that may go is kept."""
    global _is_done
    with _lock:
        if _is_done:
            return
        _is_done = True
    gc.collect()
    gc.freeze()
