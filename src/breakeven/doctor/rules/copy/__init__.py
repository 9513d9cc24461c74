"""Rules about copies to the device."""
