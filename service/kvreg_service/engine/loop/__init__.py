"""The step loop, and what carries out its plans on tensors."""
