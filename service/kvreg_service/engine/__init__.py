"""Device memory, plans turned into tensors, and the step loop."""
