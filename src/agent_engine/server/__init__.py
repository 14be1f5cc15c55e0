"""The HTTP API and the inspector pages."""
