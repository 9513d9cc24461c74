"""Rules about the step on the CPU that it was measured on."""
