"""Devices as placement sees them: replicas on them, candidates for eviction, and free room."""
