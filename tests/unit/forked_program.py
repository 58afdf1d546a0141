"""What test_forking.py has forked: says what it finds, or does what it is told to."""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["say"]:
            found = {
                "argv": sys.argv[1:],
                "main": sys.modules["__main__"].__spec__.name,
                "environ": dict(os.environ),
                "cwd": os.getcwd(),
                "is_leader": os.getsid(0) == os.getpid(),
                "files": [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()],
                "read": sys.stdin.read(),
                "collects": gc.isenabled(),
            }
            print(json.dumps(found))
            print("on stderr", file=sys.stderr)
        case ["exit", code]:
            sys.exit(int(code) if code.isdigit() else code)
        case ["raise"]:
            raise ValueError("a fault of the test's")
        case ["die", number]:
            os.kill(os.getpid(), int(number))
        case ["draw"]:
            import numpy as np

            print(np.random.rand())
        case ["sleep"]:
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
            print("asleep", flush=True)
            time.sleep(3600)
