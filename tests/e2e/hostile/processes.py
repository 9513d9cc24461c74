"""Scripts that start processes and threads, and leave them."""

from hostile.script import answered, refused

# Ends by itself after a while, should nobody end it.
_SLEEPS = """[sys.executable, "-c", "import time; time.sleep(120)"]"""

SCRIPTS = (
    answered("leaves a program running", f"""
        subprocess.Popen({_SLEEPS})
        train()
    """, in_sample=True),
    answered("leaves a program without environment", """
        subprocess.Popen(["/bin/sleep", "120"], env={}, start_new_session=True)
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
    """, in_sample=True),
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
    answered("forks at every step", """
        for _ in steps():
            if os.fork() == 0:
                os._exit(0)
            os.wait()
    """),
    answered("starts a process afresh", """
        import multiprocessing
        if __name__ == "__main__":
            multiprocessing.get_context("spawn").Process(target=time.sleep, args=(120,)).start()
            train()
    """),
    answered("leaves a pool of processes", """
        import multiprocessing
        pool = multiprocessing.Pool(3)
        assert pool.map(abs, [-1, -2]) == [1, 2]
        train()
    """, in_sample=True),
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
    """, in_sample=True),
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
    refused("lets a forked process train", r"stuck at train\.py:8: `os\.wait", """
        if os.fork() == 0:
            train()
        os.wait()
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
    """, in_sample=True),
    refused("ends its parent", r"has died", """
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(120)
    """),
    refused("stops its parent", r"within 1 s|stopped answering", """
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(120)
    """, time_limit_s=1.0, in_sample=True),
)  # fmt: skip
