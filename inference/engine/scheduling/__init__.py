"""Which rows run in the next step, and for whom: queues, turns, preemption, pace. No torch."""
