"""What is around a script while it runs: each kind of run is a session."""
