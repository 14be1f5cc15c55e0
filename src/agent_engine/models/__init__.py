"""The model protocol, provider adapters, the offline and the scripted model."""
