"""plugins.toml, loading, and the plugin manager."""
