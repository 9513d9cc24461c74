"""What DataLoaders give a step, and what that costs."""
