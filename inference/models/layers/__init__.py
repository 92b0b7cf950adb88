"""The parts of a layer, on torch's operators: attention, MLP, experts, norms, projections."""
