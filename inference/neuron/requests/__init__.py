"""Every request that has not ended, from the inbox to its answer."""
