"""agents.yaml to a typed system, every problem with its line."""
