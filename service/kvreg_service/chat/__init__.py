"""From messages to tokens and back: tokenizer, template, stable boundary, echo, text stream."""
