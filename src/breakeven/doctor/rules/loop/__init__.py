"""Rules about loops of the script over samples and time steps."""
