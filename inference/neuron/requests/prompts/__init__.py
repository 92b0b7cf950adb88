"""From a parsed request to the token ids and parameters that its engine gets."""
