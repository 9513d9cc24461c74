from itertools import count

import tiny_training

step = count(1)


def fail_at_step_3():
    if next(step) == 3:
        raise ZeroDivisionError("no step after the third")


tiny_training.train(on_step=fail_at_step_3)
