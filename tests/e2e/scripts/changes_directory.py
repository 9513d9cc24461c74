import os

import tiny_training

os.chdir("/")
tiny_training.train()
