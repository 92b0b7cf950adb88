"""From logits to tokens: penalties, grammars, masks, filters, draws, log probabilities."""
