"""From sampled tokens to text to the readers of answers."""
