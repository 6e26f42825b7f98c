"""The objects that a profile renders to, as plain dictionaries. Pure."""
