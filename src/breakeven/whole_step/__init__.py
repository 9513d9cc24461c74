"""Forward, backward and update as one compiled call."""
