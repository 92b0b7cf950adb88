"""What the bench imports: one file for each kind of file. Pure.

helexa-bench.toml    the original's configuration: targets, scenarios, how often
scripts/bench --json this repository's own measurements
baseline points      a list of JSON objects with the columns of a run
"""
