"""Scripts that change Python, its library, or torch under their own feet."""

from hostile.script import answered, refused

SCRIPTS = (
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
    answered("forgets all modules of breakeven", """
        for name in list(sys.modules):
            if name.startswith("breakeven"):
                del sys.modules[name]
        train()
    """),
    answered("forgets what it is", """
        del sys.modules["__main__"]
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
    answered("traces every line", """
        sys.settrace(lambda frame, event, argument: lambda *_: None)
        threading.settrace(lambda frame, event, argument: None)
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
    refused("shows errors its own way, which fails", r"raised ValueError: first.*train\.py:9", """
        def show(*_):
            raise KeyError("while it shows")
        sys.excepthook = show
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
    answered("imports itself", """
        if __name__ == "__main__":
            import train as myself
            assert myself.__name__ == "train"
            from training import train
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
