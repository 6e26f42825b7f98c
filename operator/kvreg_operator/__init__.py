"""The Kubernetes operator of kvreg. It talks to the service over HTTP only."""
