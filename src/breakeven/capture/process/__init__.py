"""The processes in which scripts run, and what is said between them and their parent."""
