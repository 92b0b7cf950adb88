"""Filters of the bench's templates."""
