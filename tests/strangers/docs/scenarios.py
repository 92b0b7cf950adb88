"""The scenarios that blocks are marked with, each with the test file that executes it."""

from __future__ import annotations

SCENARIOS = {
    "serve": "test_on_a_server.py",
    "bench": "test_on_a_server.py",
    "models-file": "test_on_a_server.py",
    "first-start": "test_starts.py",
    "two-hosts": "test_starts.py",
    "own-databases": "test_starts.py",
    "processes": "test_starts.py",
    "backup": "test_backup.py",
    "bench-script": "test_bench_scripts.py",
    "editor-bridge": "test_marks.py",
    "claude-code": "test_clients.py",
    "opencode": "test_clients.py",
    "codex": "test_clients.py",
    "qwen-code": "test_clients.py",
    "aider": "test_clients.py",
    "llm": "test_clients.py",
}
