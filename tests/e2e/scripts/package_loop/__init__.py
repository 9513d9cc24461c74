"""A package that is trained with ``python -m package_loop.train``."""
