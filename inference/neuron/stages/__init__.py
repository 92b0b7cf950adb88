"""The stages that this neuron holds for engines of other neurons."""
