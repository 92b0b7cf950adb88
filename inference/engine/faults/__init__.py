"""Faults of a step: their classes, the row at fault, and whether the device is still sound."""
