"""Models loaded on this neuron: each an engine process, its status, its sleep and its restarts."""
