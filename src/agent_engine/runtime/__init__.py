"""One run, from message to answer."""
