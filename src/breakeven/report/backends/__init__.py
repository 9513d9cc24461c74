"""Back-ends: a document at a terminal, as HTML and as Markdown."""
