"""Files of accounts, and batches of requests that run at the lowest priority."""
