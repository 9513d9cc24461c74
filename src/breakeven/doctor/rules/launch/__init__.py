"""Rules about steps that the host cannot issue fast enough."""
