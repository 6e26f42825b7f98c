"""``KVRegistryProfile``: the shape of the resource, and the definition that is written from it."""
