"""Turns a client's bytes into a model's tokens and back."""

import sys

# redis-py imports OpenTelemetry's metrics where they are installed: 73 modules and 3 MiB of every
# process, for figures that nothing reads.
sys.modules.setdefault("opentelemetry.sdk.metrics", None)  # type: ignore[arg-type]
