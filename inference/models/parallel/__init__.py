"""A decoder whose weights several ranks share: what each holds, and what they tell each other."""
