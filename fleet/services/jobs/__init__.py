"""Load jobs: loads, reloads, unloads, sleeps and wakes, from their start to their end."""
