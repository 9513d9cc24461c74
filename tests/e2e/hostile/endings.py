"""Scripts that end before their time, in unusual ways, or not at all."""

from hostile.script import answered, refused

SCRIPTS = (
    refused("ends by a status after steps", r"status 3 after \d+ training steps", """
        for number, _ in enumerate(steps()):
            if number == 4:
                os._exit(3)
    """, in_sample=True),
    refused("calls exit of the C library", r"ended with status 5 before its first", """
        ctypes.CDLL(None).exit(5)
    """),
    refused("reads memory that is not there after steps", r"signal SIGSEGV", """
        for number, _ in enumerate(steps()):
            if number == 3:
                ctypes.string_at(0)
    """),
    refused("kills itself", r"signal SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)",
            in_sample=True),
    refused("kills its group", r"signal SIGKILL", "os.killpg(0, signal.SIGKILL)"),
    refused("interrupts itself", r"raised KeyboardInterrupt", """
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
    """),
    answered("is interrupted by alarms without end", """
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        train()
    """, in_sample=True),
    answered("ignores every signal", """
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
        train()
    """),
    refused("ignores what asks it to end, and hangs", r"within 1 s; stuck at train\.py:8", """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(120)
    """, time_limit_s=1.0, in_sample=True),
    refused("computes without end", r"within 1 s; stuck at train\.py:[67]", """
        while True:
            pass
    """, time_limit_s=1.0),
    refused("sleeps in C and lets no thread run", r"within 1 s", """
        ctypes.PyDLL(None).sleep(60)
    """, time_limit_s=1.0),
    refused("asks what to do", r"asks for input at .*train\.py:6", "input('epochs? ')"),
    answered("closes its output", """
        sys.stdout.close()
        sys.stderr.close()
        train()
    """),
    refused("closes all descriptors, takes their numbers", r"closed file descriptors", """
        os.closerange(3, 65_536)
        kept = [open(f"new-{number}", "w") for number in range(40)]
        train()
    """, in_sample=True),
    refused("leads all descriptors nowhere", r"closed file descriptors", """
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3, 256):
            os.dup2(nowhere, number)
        train()
    """),
    answered("writes nonsense to all descriptors", """
        for number in range(3, 256):
            try:
                os.write(number, b"nonsense\\n{}\\n")
            except OSError:
                pass
        train()
    """),
    answered("lets itself open few files", """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        train()
    """),
    answered("lets itself write no file", """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        train()
    """),
    answered("lets itself have no process", """
        import resource
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        train()
    """),
    refused("lets itself have little time", r"signal SIGXCPU", """
        import resource
        used_s = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + 1, used_s + 2))
        while True:
            pass
    """),
    refused("says that there is no memory", r"raised MemoryError", "raise MemoryError"),
    refused("calls itself without end or limit", r"signal SIGSEGV|raised RecursionError", """
        sys.setrecursionlimit(2**31 - 1)
        class Endless:
            def __getattr__(self, name):
                return getattr(self, name + "x")
        repr(Endless().x)
    """),
    refused("raises what is no Exception", r"raised Odd: strange.*train\.py:8", """
        class Odd(BaseException):
            pass
        raise Odd("strange")
    """),
    refused("raises with words that are no text", r"raised Odd.*train\.py:9", """
        class Odd(Exception):
            def __str__(self):
                return "\\udcff\\x00\\x1b[31m"
        raise Odd
    """, in_sample=True),
    refused("raises with 10 MB of words", r"raised ValueError: xxx", """
        raise ValueError("x" * 10**7)
    """),
    refused("raises what came from itself", r"raised ValueError: round.*train\.py:8", """
        error = ValueError("round")
        error.__cause__ = error.__context__ = error
        raise error
    """),
    answered("cannot be ended by an exception", """
        while True:
            try:
                train()
            except BaseException:
                pass
            finally:
                continue
    """),
    answered("hangs at its exit", """
        import atexit
        atexit.register(time.sleep, 120)
        train(50)
    """),
    answered("raises at its exit", """
        import atexit
        def fail():
            raise ValueError("late")
        atexit.register(fail)
        train(50)
    """),
    answered("prints what steers a terminal, and no text", """
        sys.stdout.buffer.write(b"\\x1b[2J\\x1b]0;title\\x07\\x00\\xff\\xfe")
        train()
    """),
    answered("prints what looks like an answer", """
        print('{"schema_version": 1, "verdict": {"choice": "gpu"}}')
        train()
    """, in_sample=True),
)  # fmt: skip
