"""What the bench imports: one file for each kind of file, all pure but the original's database.

helexa-bench.toml    the original's configuration: targets, scenarios, how often
scripts/bench --json this repository's own measurements
bench.sqlite         the original's results
baseline points      a list of JSON objects with the columns of a run
"""
