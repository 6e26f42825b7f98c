"""The hybrid model in torch: configuration, checkpoint loading, layers and sampling."""
