import sys

import tiny_training

if tiny_training is not None:
    print("nothing to do")
    sys.exit(0)
tiny_training.train()
