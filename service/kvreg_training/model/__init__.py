"""The model as a differentiable torch module, and its weights."""
