"""Devices as placement sees them: what is on them, what may leave, what has room there."""
