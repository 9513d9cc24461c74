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
    answered("forgets all modules of breakeven", """
        for name in list(sys.modules):
            if name.startswith("breakeven"):
                del sys.modules[name]
        train()
    """, in_sample=True),
    answered("forgets many modules", """
        for name in ("os", "time", "msgspec", "gc", "threading", "traceback", "linecache"):
            sys.modules.pop(name, None)
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
    """, in_sample=True),
    answered("traces every line", """
        sys.settrace(lambda frame, event, argument: lambda *_: None)
        threading.settrace(lambda frame, event, argument: None)
        train()
    """),
    answered("takes warnings for errors", """
        import warnings
        warnings.simplefilter("error")
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
    """, in_sample=True),
    answered("replaces functions of the system", """
        def refuse(*_, **__):
            raise PermissionError("not allowed")
        os.write = os.read = os._exit = refuse
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
    """, in_sample=True),
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
    refused("has an auditor that allows nothing", r"raised RuntimeError|ended with status 1", """
        def audit(event, arguments):
            raise RuntimeError(event)
        sys.addaudithook(audit)
        train()
    """, in_sample=True),
    answered("has a low limit of calls", """
        sys.setrecursionlimit(120)
        train()
    """),
    answered("imports itself", """
        if __name__ == "__main__":
            import train as myself
            assert myself.__name__ == "train"
            from training import train
            train()
    """),
    answered("counts threads of its own", """
        assert threading.main_thread() is threading.current_thread()
        assert threading.current_thread().name == "MainThread"
        train()
    """),
    refused("turns gradients off", r"raised RuntimeError.*does not require grad", """
        torch.set_grad_enabled(False)
        train()
    """),
)  # fmt: skip
