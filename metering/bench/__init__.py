"""helexa-bench: measures endpoints' speed, build by build. ``measures`` are pure."""
