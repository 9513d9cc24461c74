"""``python -m breakeven`` is ``breakeven``."""

from breakeven.cli import entry_point

if __name__ == "__main__":
    entry_point()
