"""Scripts that a check must be safe to be pointed at, by family."""
