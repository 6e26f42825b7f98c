"""Tool calls in generated text: their syntax, their argument types and the streaming parser."""
