"""The Kubernetes operator of kvreg. It knows engines by their HTTP routes only."""
