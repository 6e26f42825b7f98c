"""What clients ask for: tokens, limits, and how the cache may be used."""
