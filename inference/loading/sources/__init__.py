"""Where model files come from: hub, paths, wheels; fetched, checked, found in the cache."""
