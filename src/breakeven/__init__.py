"""breakeven: does a GPU pay off for your training step, and from which size on?"""

__version__ = "0.1.0"
