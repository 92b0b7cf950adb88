"""What a layer is made of, on torch's operators: attention, MLP, experts, norms, projections."""
