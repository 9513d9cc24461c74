"""Which of the devices that are here runs a model fastest, measured in a moment."""
