"""Conversations and their stores, and the standalone HooksManager."""
