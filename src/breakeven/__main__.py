"""``python -m breakeven`` is ``breakeven``."""

import sys

if __name__ == "__main__":
    # No file in the current folder takes the place of a module of Python's: it is the script's.
    if not sys.flags.safe_path:
        del sys.path[0]

    from breakeven.cli import entry_point

    entry_point()
