"""Frozen views of lanes, entries and pools, as a tenant may see them."""
