"""What hooks decided: decision records, stores, traces."""
