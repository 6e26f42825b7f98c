"""The ops of the hybrid model, each with its reference."""
