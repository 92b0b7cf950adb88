"""The settings: every environment variable that helexa reads, with its kind and bounds.

Processes without Django read settings too, some before anything is installed: this package uses the
standard library only.
"""
