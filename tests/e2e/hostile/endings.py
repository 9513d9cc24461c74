"""Scripts that end before their time, in unusual ways, or not at all."""

from hostile.script import answered, refused

SCRIPTS = (
    refused("ends at once", r"ended with status 0 before its first", "os._exit(0)"),
    refused("ends at once with a status", r"ended with status 7 before its first", "os._exit(7)"),
    refused("ends by a status after steps", r"status 3 after \d+ training steps", """
        for number, _ in enumerate(steps()):
            if number == 4:
                os._exit(3)
    """),
    refused("ends with words", r"ended with the words `no GPU, no training`", """
        sys.exit("no GPU, no training")
    """),
    refused("ends with an object", r"ended with the words `\{'a': 1\}`", "sys.exit({'a': 1})"),
    refused("ends with an object that cannot be shown", r"before its first training step", """
        class Silent:
            def __str__(self):
                raise ValueError("not to be shown")
        sys.exit(Silent())
    """),
    refused("ends by quit", r"ended with status 0 before its first", "quit()"),
    refused("calls exit of the C library", r"ended with status 5 before its first", """
        ctypes.CDLL(None).exit(5)
    """),
    refused("aborts", r"ended by signal SIGABRT", "os.abort()"),
    refused("reads memory that is not there", r"ended by signal SIGSEGV", "ctypes.string_at(0)"),
    refused("reads memory that is not there after steps", r"signal SIGSEGV", """
        for number, _ in enumerate(steps()):
            if number == 3:
                ctypes.string_at(0)
    """),
    refused("kills itself", r"signal SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)"),
    refused("ends itself by SIGTERM", r"signal SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)"),
    refused("kills its group", r"signal SIGKILL", "os.killpg(0, signal.SIGKILL)"),
    refused("interrupts itself", r"raised KeyboardInterrupt", """
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
    """),
    refused("lets an alarm end it", r"signal SIGALRM", """
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        train()
    """),
    refused("raises from an alarm while it loads", r"raised TimeoutError: enough", """
        def late(*_):
            raise TimeoutError("enough")
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(120)
    """),
    answered("is interrupted by alarms without end", """
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        train()
    """),
    answered("ignores every signal", """
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
        train()
    """),
    answered("blocks every signal", """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        train()
    """),
    answered("leaves its children to nobody", """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        train()
    """),
    refused("ignores what asks it to end, and hangs", r"within 1 s; stuck at train\.py:8", """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(120)
    """, time_limit_s=1.0),
    refused("sleeps", r"within 1 s; stuck at train\.py:6", "time.sleep(120)", time_limit_s=1.0),
    refused("computes without end", r"within 1 s; stuck at train\.py:[67]", """
        while True:
            pass
    """, time_limit_s=1.0),
    refused("sleeps in C and lets no thread run", r"within 1 s", """
        ctypes.PyDLL(None).sleep(60)
    """, time_limit_s=1.0),
    refused("waits for itself", r"within 1 s; stuck at train\.py:8", """
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    """, time_limit_s=1.0),
    refused("sleeps after its first step", r"a second training step within 1 s", """
        for _ in steps():
            time.sleep(120)
    """, time_limit_s=1.0),
    refused("asks what to do", r"raised EOFError.*train\.py:6", "input('epochs? ')"),
    refused("reads all of its input", r"ended with the words `nothing to read`", """
        if not sys.stdin.read():
            sys.exit("nothing to read")
        train()
    """),
    answered("closes its input", """
        sys.stdin.close()
        os.close(0)
        train()
    """),
    answered("closes its output", """
        sys.stdout.close()
        sys.stderr.close()
        train()
    """),
    answered("closes the descriptors of its output", """
        os.close(1)
        os.close(2)
        train()
    """),
    answered("leads its output nowhere", """
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        train()
    """),
    refused("closes all descriptors but three", r"closed file descriptors", """
        os.closerange(3, 65_536)
        train()
    """),
    refused("closes all descriptors", r"closed file descriptors", """
        os.closerange(0, 65_536)
        train()
    """),
    refused("closes all descriptors, takes their numbers", r"closed file descriptors", """
        os.closerange(3, 65_536)
        kept = [open(f"new-{number}", "w") for number in range(40)]
        train()
    """),
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
    answered("opens nearly as many files as it may", """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = []
        try:
            while True:
                kept.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for number in kept[:20]:
                os.close(number)
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
    answered("lets itself have a small stack", """
        import resource
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
        train()
    """),
    refused("lets itself have little time", r"signal SIGXCPU", """
        import resource
        used_s = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + 1, used_s + 2))
        while True:
            pass
    """),
    refused("lets itself have no memory", r"(raised (MemoryError|RuntimeError)).*train\.py:8", """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        kept = bytearray(1 << 28)
    """),
    refused("takes more memory than there is", r"raised RuntimeError.*train\.py:6", """
        kept = torch.zeros(1 << 48)
    """),
    refused("says that there is no memory", r"raised MemoryError", "raise MemoryError"),
    refused("calls itself without end", r"raised RecursionError", """
        def again():
            again()
        again()
    """),
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
    refused("raises what cannot be shown", r"raised Silent.*train\.py:9", """
        class Silent(Exception):
            def __str__(self):
                raise ValueError("not to be shown")
        raise Silent
    """),
    refused("raises with words that are no text", r"raised Odd.*train\.py:9", """
        class Odd(Exception):
            def __str__(self):
                return "\\udcff\\x00\\x1b[31m"
        raise Odd
    """),
    refused("raises with 10 MB of words", r"raised ValueError: xxx", """
        raise ValueError("x" * 10**7)
    """),
    refused("raises a group", r"raised ExceptionGroup.*train\.py:6", """
        raise ExceptionGroup("both", [ValueError("one"), TypeError("other")])
    """),
    refused("raises what came from itself", r"raised ValueError: round.*train\.py:8", """
        error = ValueError("round")
        error.__cause__ = error.__context__ = error
        raise error
    """),
    refused("raises StopIteration", r"raised StopIteration", "raise StopIteration"),
    refused("raises GeneratorExit", r"raised GeneratorExit", "raise GeneratorExit"),
    refused("raises where it cleans up", r"raised KeyError: 'second'", """
        try:
            raise ValueError("first")
        finally:
            raise KeyError("second")
    """),
    refused("dumps where it stands and ends", r"status 1 before its first", """
        import faulthandler
        faulthandler.dump_traceback_later(0.2, exit=True, file=open(os.devnull, "w"))
        time.sleep(120)
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
    answered("ends by words after steps", """
        train(50)
        sys.exit(0)
    """),
    answered("prints 20 MB", """
        for _ in range(200):
            print("x" * 100_000)
        train()
    """),
    answered("prints what steers a terminal, and no text", """
        sys.stdout.buffer.write(b"\\x1b[2J\\x1b]0;title\\x07\\x00\\xff\\xfe")
        train()
    """),
    answered("prints what looks like an answer", """
        print('{"schema_version": 1, "verdict": {"choice": "gpu"}}')
        train()
    """),
)  # fmt: skip
