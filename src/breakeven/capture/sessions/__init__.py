"""Sessions around a running script, one for each kind of run."""
