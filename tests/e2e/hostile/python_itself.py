"""Scripts that change Python, its library, or torch under their own feet."""

from hostile.script import answered, refused

SCRIPTS = (
    answered("has no output any more", """
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
        train()
    """),
    answered("has an output that fails", """
        class Broken:
            def write(self, text):
                raise OSError("broken")
            flush = write
        sys.stdout = sys.stderr = Broken()
        train()
    """),
    answered("has an output that fails when it is flushed", """
        class Broken:
            def write(self, text):
                return len(text)
            def flush(self):
                raise KeyError("broken")
        sys.stdout = sys.stderr = Broken()
        train()
    """),
    answered("has an output that never ends", """
        class Slow:
            def write(self, text):
                return len(text)
            def flush(self):
                time.sleep(120)
        sys.stdout = Slow()
        train()
    """),
    answered("empties its environment", """
        os.environ.clear()
        train()
    """),
    answered("has an environment of nonsense", """
        for name in ("HOME", "TMPDIR", "PATH", "LANG", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
            os.environ[name] = "/nowhere\\udcff"
        os.environ["OMP_NUM_THREADS"] = "many"
        train()
    """),
    answered("empties its paths and arguments", """
        sys.path.clear()
        sys.argv.clear()
        sys.meta_path.clear()
        train()
    """),
    answered("makes its arguments none", """
        sys.argv = sys.orig_argv = None
        train()
    """),
    answered("forgets all modules of breakeven", """
        for name in list(sys.modules):
            if name.startswith("breakeven"):
                del sys.modules[name]
        train()
    """),
    answered("forgets many modules", """
        for name in ("os", "time", "msgspec", "gc", "threading", "traceback", "linecache"):
            sys.modules.pop(name, None)
        train()
    """),
    answered("forgets what it is", """
        del sys.modules["__main__"]
        train()
    """),
    answered("has modules that are none", """
        sys.modules["json"] = None
        sys.modules["random"] = 3
        train()
    """),
    answered("has a module named as one of ours", """
        Path("breakeven.py").write_text("raise ValueError('not me')")
        Path("msgspec.py").write_text("raise ValueError('not me')")
        train()
    """),
    answered("stops the clock", """
        time.time = time.perf_counter = time.monotonic = lambda: 0.0
        time.time_ns = time.perf_counter_ns = time.monotonic_ns = lambda: 0
        train()
    """),
    answered("has a clock that goes backwards", """
        real = time.perf_counter_ns
        time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: -real()
        time.perf_counter = time.monotonic = time.time = lambda: -real() / 1e9
        train()
    """),
    answered("has a sleep that does not", """
        time.sleep = lambda seconds: None
        train()
    """),
    answered("traces every line", """
        sys.settrace(lambda frame, event, argument: lambda *_: None)
        threading.settrace(lambda frame, event, argument: None)
        train()
    """),
    answered("profiles every call", """
        sys.setprofile(lambda *_: None)
        train()
    """),
    answered("turns tracing off at every step", """
        for _ in steps():
            sys.settrace(None)
            sys.setprofile(None)
    """),
    answered("collects no garbage", """
        import gc
        gc.disable()
        gc.freeze()
        train()
    """),
    answered("collects garbage at every step", """
        import gc
        gc.set_debug(gc.DEBUG_SAVEALL)
        for _ in steps():
            gc.collect()
    """),
    answered("takes warnings for errors", """
        import warnings
        warnings.simplefilter("error")
        train()
    """),
    answered("has other warnings", """
        import warnings
        warnings.showwarning = warnings.warn = None
        train()
    """),
    answered("lets only its own modules be imported", """
        class Refuses:
            def find_spec(self, name, *_):
                raise ImportError(f"{name} is not allowed")
        sys.meta_path.insert(0, Refuses())
        train()
    """),
    answered("replaces the import", """
        import builtins
        real = builtins.__import__
        def allow(name, *arguments, **options):
            if name.startswith("breakeven"):
                raise ImportError(name)
            return real(name, *arguments, **options)
        builtins.__import__ = allow
        train()
    """),
    answered("replaces open", """
        import builtins
        def refuse(*_, **__):
            raise PermissionError("nothing is opened")
        builtins.open = refuse
        train()
    """),
    answered("replaces functions of the system", """
        def refuse(*_, **__):
            raise PermissionError("not allowed")
        os.write = os.read = os._exit = refuse
        train()
    """),
    answered("replaces json and tracebacks", """
        import json, traceback
        json.dumps = json.loads = traceback.format_exc = traceback.format_exception = None
        train()
    """),
    answered("replaces functions of torch", """
        real = torch.randn
        torch.randn = lambda *arguments, **options: real(*arguments, **options) * 2
        torch.get_num_threads = lambda: 3
        torch.cuda.is_available = lambda: False
        train()
    """),
    answered("replaces the step of the optimizer", """
        real = torch.optim.SGD.step
        torch.optim.SGD.step = lambda self, *arguments: real(self, *arguments)
        train()
    """),
    answered("replaces the backward pass", """
        real = torch.Tensor.backward
        torch.Tensor.backward = lambda self, *a, **options: real(self, *a, **options)
        train()
    """),
    answered("removes all hooks of optimizers", """
        from torch.optim import optimizer
        optimizer._global_optimizer_post_hooks.clear()
        optimizer._global_optimizer_pre_hooks.clear()
        train()
    """),
    answered("has finalizers that raise", """
        class Fails:
            def __del__(self):
                raise ValueError("too late")
        for _ in steps():
            Fails()
    """),
    answered("has finalizers that train", """
        class Trains:
            def __del__(self):
                train(2)
        for _ in steps(300):
            Trains()
    """),
    answered("has classes that answer to everything", """
        class Any(type):
            def __getattr__(cls, name):
                return cls
            def __instancecheck__(cls, one):
                return True
            def __eq__(cls, other):
                raise TypeError("not to be compared")
            __hash__ = None
        class Thing(metaclass=Any):
            pass
        kept = Thing
        train()
    """),
    answered("has objects that cannot be compared or shown", """
        class Odd:
            def __eq__(self, other):
                raise TypeError("not to be compared")
            def __repr__(self):
                raise TypeError("not to be shown")
            def __bool__(self):
                raise TypeError("neither true nor false")
            def __getattribute__(self, name):
                raise TypeError("nothing in here")
        odd = [Odd() for _ in range(10)]
        train()
    """),
    answered("has a frame with odd names", """
        globals().update({"__name__": 3, "__file__": None, "__builtins__": __builtins__})
        train()
    """),
    refused("shows errors its own way, which fails", r"raised ValueError: first.*train\.py:9", """
        def show(*_):
            raise KeyError("while it shows")
        sys.excepthook = show
        raise ValueError("first")
    """),
    refused("shows errors its own way, and ends", r"raised ValueError: first", """
        sys.excepthook = lambda *_: os._exit(0)
        raise ValueError("first")
    """),
    answered("has an auditor that allows no subprocess", """
        def audit(event, arguments):
            if event == "subprocess.Popen":
                raise RuntimeError(event)
        sys.addaudithook(audit)
        train()
    """),
    refused("has an auditor that allows nothing", r"raised RuntimeError|ended with status 1", """
        def audit(event, arguments):
            raise RuntimeError(event)
        sys.addaudithook(audit)
        train()
    """),
    answered("has integers that have no text", """
        sys.set_int_max_str_digits(640)
        train()
    """),
    answered("has a low limit of calls", """
        sys.setrecursionlimit(120)
        train()
    """),
    answered("switches threads all the time", """
        sys.setswitchinterval(1e-6)
        train()
    """),
    answered("reads numbers in another country's way", """
        import locale
        try:
            locale.setlocale(locale.LC_ALL, "C")
        except locale.Error:
            pass
        train()
    """),
    answered("runs its own text again", """
        if __name__ == "__main__":
            import runpy
            runpy.run_path(__file__, run_name="again")
            train()
    """),
    answered("imports itself", """
        if __name__ == "__main__":
            import train as myself
            assert myself.__name__ == "train"
            from training import train
            train()
    """),
    answered("runs text that it has made", """
        exec(compile("train()", "<made up>", "exec"))
    """),
    answered("trains in the body of a class", """
        class Training:
            train()
    """),
    answered("trains while it is imported", """
        Path("other.py").write_text("from training import train\\ntrain()\\n")
        import other
    """),
    answered("counts threads of its own", """
        assert threading.main_thread() is threading.current_thread()
        assert threading.current_thread().name == "MainThread"
        train()
    """),
    answered("has other threads than torch's", """
        torch.set_num_threads(1)
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError as error:
            print(error)
        train()
    """),
    answered("computes in another precision, on another device, without gradients", """
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cpu")
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(True)
        torch.autograd.set_detect_anomaly(True)
        train()
    """),
    refused("turns gradients off", r"raised RuntimeError.*does not require grad", """
        torch.set_grad_enabled(False)
        train()
    """),
)  # fmt: skip
