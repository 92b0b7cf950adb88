"""One model on several devices of a host: a process for each rank, led by the engine's own."""
