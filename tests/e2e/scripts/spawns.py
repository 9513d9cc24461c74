"""Workers are started afresh and import this file again."""

import multiprocessing

import tiny_training

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    tiny_training.train(num_workers=1, persistent_workers=True)
