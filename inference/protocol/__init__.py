"""Messages between processes: requests, events, load specs, heartbeats, Redis key names.

Frozen msgspec structs. Imports no torch, no Django, no Redis: all processes use it.
"""
