"""Rules about the script's own work."""
