"""Rules about the script's own measurements."""
