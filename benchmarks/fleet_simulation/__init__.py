"""A fleet of a hundred hosts in discrete events, decided by the same pure functions as a real one.

python -m benchmarks.fleet_simulation
"""
