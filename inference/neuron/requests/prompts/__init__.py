"""Turns a parsed request into the token ids and parameters that its engine gets."""
