"""Operators of the hybrid model, each beside its reference."""
