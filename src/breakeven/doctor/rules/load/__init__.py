"""Rules about the data loader, and the data set behind it."""
