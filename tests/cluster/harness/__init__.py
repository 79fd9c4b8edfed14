"""Starts and stops a real Kubernetes for the tests. See cluster.py for what people and tests call."""
