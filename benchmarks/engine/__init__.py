"""The parts of the engine, each measured by itself: ``python -m benchmarks.engine.NAME``."""
