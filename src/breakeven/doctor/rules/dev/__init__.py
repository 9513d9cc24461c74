"""Rules about what is on the device, and what is not."""
