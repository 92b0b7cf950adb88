"""Files that accounts keep, and batches of requests that run when others leave room."""
