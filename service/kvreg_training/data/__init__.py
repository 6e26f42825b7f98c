"""Training chats: generation, rendering, tokenization and padding."""
