"""Fakes and a test server, which ship with the package. The service imports none of them."""
