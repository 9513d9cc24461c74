"""The processes that run scripts, and their messages to the parent."""
