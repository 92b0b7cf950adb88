"""The subjects: one file each, run in a process of its own."""
