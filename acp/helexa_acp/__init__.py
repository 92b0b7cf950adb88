"""An agent for editors: the Agent Client Protocol on one side, LLM servers on the other."""

from __future__ import annotations

__version__ = "0.2.0"
