"""Settings put into effect around a script that does not know of them, and undone."""
