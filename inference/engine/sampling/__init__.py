"""Turns logits into tokens: penalties, grammars, masks, filters, draws, log probabilities."""
