"""Benchmarks of the gateway alone: cost of a request, steadiness of streams, memory."""
