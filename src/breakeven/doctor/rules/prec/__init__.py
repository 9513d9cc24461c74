"""Rules about number formats."""
