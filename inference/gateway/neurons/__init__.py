"""What the gateway watches of neurons: that they live, what they hold, how they behave."""
