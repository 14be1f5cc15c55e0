"""agentctl: one module a command."""
