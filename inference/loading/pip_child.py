"""pip, run as a program of its own that ends with whoever started it, however that ended.

An engine process goes at once when its neuron does; a download must not outlive it. On Linux the
kernel sees to that. Started by file name, so it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def die_with_parent(parent_pid: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it was quicker
        sys.exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv.pop(1)))
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
