"""Runs before the requirements are installed: environment, lock files, pip, the build of torch."""
