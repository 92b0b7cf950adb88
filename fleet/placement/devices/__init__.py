"""Devices for placement: replicas on them, candidates for eviction, and free memory."""
