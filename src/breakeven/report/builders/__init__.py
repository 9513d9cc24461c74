"""A builder for each kind of report: from what was found out to a document."""
