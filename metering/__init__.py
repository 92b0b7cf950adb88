"""Who asks, how much it may cost, and what it did: accounts, keys, budgets and the ledger."""
