"""The step loop, and the runner that executes its plans on tensors."""
