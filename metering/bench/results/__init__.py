"""What samples amount to: figures, comparisons between builds, trends, and reports of them."""
