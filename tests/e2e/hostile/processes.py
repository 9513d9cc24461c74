"""Scripts that start processes and threads, and leave them."""

from hostile.script import answered, refused

# Ends by itself after a while, should nobody end it.
_SLEEPS = """[sys.executable, "-c", "import time; time.sleep(120)"]"""

SCRIPTS = (
    answered("leaves a program running", f"""
        subprocess.Popen({_SLEEPS})
        train()
    """),
    answered("leaves a program of a shell running", """
        os.system("sleep 120 &")
        train()
    """),
    answered("leaves a program that ignores the end of its terminal", """
        os.system("nohup sleep 120 >/dev/null 2>&1 &")
        train()
    """),
    answered("leaves a program in a session of its own", f"""
        subprocess.Popen({_SLEEPS}, start_new_session=True, stdout=subprocess.DEVNULL)
        train()
    """),
    answered("leaves a program without environment", """
        subprocess.Popen(["/bin/sleep", "120"], env={}, start_new_session=True)
        train()
    """),
    answered("leaves a program started by posix_spawn", """
        os.posix_spawn("/bin/sleep", ["sleep", "120"], {}, setsid=True)
        train()
    """),
    answered("leaves a program with all of its descriptors", f"""
        subprocess.Popen({_SLEEPS}, close_fds=False)
        train()
    """),
    answered("leaves a program at a terminal of its own", """
        import pty
        process, terminal = pty.fork()
        if process == 0:
            os.execv("/bin/sleep", ["sleep", "120"])
        train()
    """),
    answered("leaves a helper that ignores what asks it to end", """
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(120)
            os._exit(0)
        train()
    """),
    answered("leaves a daemon", """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.closerange(0, 4096)
                time.sleep(120)
            os._exit(0)
        os.wait()
        train()
    """),
    answered("leaves helpers that follow one another", """
        if os.fork() == 0:
            os.setsid()
            end_s = time.monotonic() + 20
            while time.monotonic() < end_s:
                if os.fork():
                    os._exit(0)
                time.sleep(0.005)
            os._exit(0)
        train()
    """),
    answered("leaves a helper that is stopped", """
        helper = os.fork()
        if helper == 0:
            time.sleep(120)
            os._exit(0)
        os.kill(helper, signal.SIGSTOP)
        train()
    """),
    answered("leaves a helper that computes", """
        if os.fork() == 0:
            end_s = time.monotonic() + 20
            while time.monotonic() < end_s:
                pass
            os._exit(0)
        train()
    """),
    answered("leaves a hundred processes that nobody waits for", """
        for _ in range(100):
            if os.fork() == 0:
                os._exit(0)
        train()
    """),
    answered("leaves fifty processes that sleep", """
        for _ in range(50):
            if os.fork() == 0:
                time.sleep(120)
                os._exit(0)
        train()
    """),
    answered("forks at every step", """
        for _ in steps():
            if os.fork() == 0:
                os._exit(0)
            os.wait()
    """),
    answered("runs a program at every step", """
        for _ in steps():
            subprocess.run(["true"], check=True)
    """),
    answered("starts a process afresh", """
        import multiprocessing
        if __name__ == "__main__":
            multiprocessing.get_context("spawn").Process(target=time.sleep, args=(120,)).start()
            train()
    """),
    answered("starts a process from a server of forks", """
        import multiprocessing
        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.Process(target=time.sleep, args=(120,)).start()
            train()
    """),
    answered("leaves a pool of processes", """
        import multiprocessing
        pool = multiprocessing.Pool(3)
        assert pool.map(abs, [-1, -2]) == [1, 2]
        train()
    """),
    answered("leaves an executor of processes", """
        from concurrent.futures import ProcessPoolExecutor
        pool = ProcessPoolExecutor(2)
        pool.submit(time.sleep, 120)
        train()
    """),
    answered("leaves a manager of shared objects", """
        import multiprocessing
        shared = multiprocessing.Manager().dict()
        shared["a"] = 1
        train()
    """),
    answered("leaves shared memory", """
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=1 << 20)
        train()
    """),
    answered("leaves shared memory that nobody tracks", """
        from multiprocessing import resource_tracker
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=1 << 20)
        resource_tracker.unregister(memory._name, "shared_memory")
        train()
    """, needs_layer=True),
    answered("leaves semaphores", """
        import multiprocessing
        kept = [multiprocessing.Semaphore() for _ in range(20)]
        train()
    """),
    answered("leaves a semaphore of the C library", """
        ctypes.CDLL("libpthread.so.0").sem_open(b"/hostile-mark", os.O_CREAT, 0o600, 1)
        train()
    """, needs_layer=True),
    answered("shares tensors with a process that waits", """
        import torch.multiprocessing as mp
        tensor = torch.zeros(1000).share_memory_()
        queue = mp.Queue()
        queue.put(tensor)
        mp.Process(target=time.sleep, args=(120,)).start()
        train()
    """),
    answered("leaves threads that never end", """
        threading.Thread(target=threading.Event().wait).start()
        for _ in steps(30):
            pass
    """),
    answered("leaves two hundred threads", """
        for _ in range(200):
            threading.Thread(target=time.sleep, args=(120,), daemon=True).start()
        train()
    """),
    answered("leaves a thread that computes", """
        def compute():
            while True:
                sum(range(1000))
        threading.Thread(target=compute, daemon=True).start()
        train()
    """),
    answered("goes to a session of its own", """
        try:
            os.setsid()
        except PermissionError:
            print("leads a group")
        train()
    """),
    answered("goes to the group of its parent", """
        os.setpgid(0, os.getpgid(os.getppid()))
        train()
    """),
    answered("ends all of its group but itself", """
        if os.fork() == 0:
            time.sleep(120)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        train()
    """),
    answered("takes in orphans itself", """
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(120)
            os._exit(0)
        os.wait()
        train()
    """),
    answered("asks to outlive its parent", """
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        train()
    """),
    answered("gives itself another name", """
        ctypes.CDLL(None).prctl(15, b"kworker", 0, 0, 0)
        train()
    """),
    answered("makes itself unimportant, on one processor", """
        os.nice(19)
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        train()
    """),
    answered("forks, and the forked process raises", """
        if os.fork() == 0:
            raise ValueError("in the child")
        os.wait()
        train()
    """),
    answered("forks, and the forked process ends by sys.exit", """
        if os.fork() == 0:
            sys.exit(3)
        os.wait()
        train()
    """),
    answered("waits for all children of which there are none", """
        try:
            os.wait()
        except ChildProcessError:
            train()
    """),
    refused("lets a forked process train", r"trains in processes that it starts at train\.py:6", """
        if os.fork() == 0:
            train()
        os.wait()
    """),
    refused("lets started processes train", r"starts at train\.py:8|started another process", """
        import multiprocessing
        worker = multiprocessing.Process(target=train)
        worker.start()
        worker.join()
    """),
    refused("lets a fresh process train", r"started (another|2 other) process", """
        import multiprocessing
        if __name__ == "__main__":
            worker = multiprocessing.get_context("spawn").Process(target=train, args=(3,))
            worker.start()
            worker.join()
    """),
    refused("lets another program train", r"it started another process at train\.py:6", """
        subprocess.run([sys.executable, "-c", "from training import train; train(3)"])
    """),
    refused("goes on as a daemon", r"ended with status 0 before.*train\.py:7: `os\._exit", """
        if os.fork():
            os._exit(0)
        os.setsid()
        train()
    """),
    refused("becomes another program", r"ended with status 0 before its first", """
        os.execv("/bin/true", ["true"])
    """),
    refused("becomes another program that stays", r"within 1 s", """
        os.execv("/bin/sleep", ["sleep", "120"])
    """, time_limit_s=1.0),
    refused("ends its parent", r"has died", """
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(120)
    """),
    refused("stops its parent", r"within 1 s|not answer", """
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(120)
    """, time_limit_s=1.0),
    refused("stops itself", r"within 1 s", """
        os.kill(os.getpid(), signal.SIGSTOP)
    """, time_limit_s=1.0),
)  # fmt: skip
