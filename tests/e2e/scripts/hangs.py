"""Waits forever, with a child process that waits as well."""

import os
import subprocess
import sys
import time
from pathlib import Path

helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
Path(os.environ["MARKER_FILE"]).touch()
while True:
    time.sleep(3600)  # here it stands
