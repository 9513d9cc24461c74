import broken_sibling  # noqa: F401
import tiny_training

tiny_training.train()
