"""Charts: one description of each, drawn for terminals, pages and images."""
