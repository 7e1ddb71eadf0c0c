"""Slow, literal re-implementations that the package is compared with. They share no code with it."""
