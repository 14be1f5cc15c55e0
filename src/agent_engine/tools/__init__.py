"""A Python function becomes a tool that the model can call."""
