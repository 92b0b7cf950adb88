"""Files of weights: their formats, what each costs and loses, and files that are made for this."""
