"""From a conversation to the tokens of its prompt, its stable boundary and its heads."""
