"""Training chats: generated, rendered, tokenised, padded."""
