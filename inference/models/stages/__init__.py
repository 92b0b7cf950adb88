"""A model as stages: runs of its layers, each on a device of its own."""
