"""What can go wrong in a step, whose row it was, and what it says of the device."""
