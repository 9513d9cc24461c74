"""Trains with loader workers, and starts helpers that would outlive it, as experiment trackers do.

One is in a session of its own, and deaf to all but SIGKILL; one is started when the script ends;
and a semaphore with a name belongs to processes that are started anew.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import tiny_training


def start_service():
    """Fork twice, so that nobody is its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)


def start_at_the_end():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def main():
    start_service()
    atexit.register(start_at_the_end)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    if "SEMAPHORE_FILE" in os.environ:
        Path(os.environ["SEMAPHORE_FILE"]).write_text(semaphore._semlock.name)
    epochs = 1 if "--short" in sys.argv else 5_000
    tiny_training.train(num_epochs=epochs, num_workers=2, multiprocessing_context="fork")


if __name__ == "__main__":
    main()
