"""From messages to tokens and back: tokenizer, template, stable boundary, echo and streaming text."""
