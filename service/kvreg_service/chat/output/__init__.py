"""From generated tokens to text, and from text to reasoning and content."""
