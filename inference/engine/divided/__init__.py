"""A model on several devices or hosts. Ranks share every layer, stages have layers of their own;
each is a process (``children``), and rank 0 and the first stage are the engine's. What computes
them is ``inference.models.ranks`` and ``inference.models.stage``.
"""
