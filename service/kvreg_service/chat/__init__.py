"""From messages to prompt tokens, and from generated tokens to text, reasoning and tool calls."""
