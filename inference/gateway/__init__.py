"""Channels consumers, the event reader and dispatch to neurons."""

import sys

# Daphne speaks plain HTTP; Twisted imports pyOpenSSL where it is installed: 6 MiB of the gateway.
sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type]
