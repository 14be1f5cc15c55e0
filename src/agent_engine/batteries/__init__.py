"""Ready hooks and helpers for hooks."""
