"""The MCP client and its only door."""
