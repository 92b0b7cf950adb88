"""Files of weights for benchmarks, published and random."""
