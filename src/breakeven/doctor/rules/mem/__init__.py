"""Rules about the memory of the device."""
