"""``KVRegistryProfile``: the models of the resource, and the CRD that is generated from them."""
