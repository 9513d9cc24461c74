"""Scripts whose training is odd."""

from hostile.script import answered, refused

_LOADER = """
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

def train_on(loader):
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

"""


def _on_loader(text: str) -> str:
    return _LOADER + "".join(f"{line.removeprefix(' ' * 8)}\n" for line in text.splitlines())


SCRIPTS = (
    refused("takes no step", r"ended without a training step", "train(0)"),
    refused("takes one step", r"ended after 1 training step;", "train(1)"),
    answered("takes two steps", "train(2)"),
    answered("takes three steps", "train(3)"),
    answered("loses itself in NaN", """
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
        while True:
            optimizer.zero_grad()
            (model(torch.ones(8, 4)) ** 4 / 0).sum().backward()
            optimizer.step()
    """),
    refused("trains nothing", r"ended without a training step|raised", """
        torch.optim.SGD([], lr=0.1)
    """),
    refused("has a loss without a graph", r"raised RuntimeError.*train\.py:6", """
        torch.ones(()).backward()
    """),
    refused("has shapes that do not fit", r"raised RuntimeError.*cannot be multiplied", """
        torch.nn.Linear(4, 1)(torch.ones(8, 5))
    """),
    refused("raises at its third step", r"raised ZeroDivisionError.*after [23] training steps", """
        for number, _ in enumerate(steps()):
            1 / (2 - number)
    """),
    answered("swallows what is raised at every step", """
        for _ in steps():
            try:
                raise ValueError("ignored")
            except Exception:
                pass
    """),
    answered("trains in a generator that is dropped", """
        def some():
            for loss in steps(3):
                yield loss
        while True:
            for loss in some():
                break
    """),
    answered("trains in a generator within others", """
        def outer():
            yield from (loss for loss in (yield_ for yield_ in steps()))
        for loss in outer():
            pass
    """),
    answered("trains in coroutines", """
        import asyncio
        async def main():
            for _ in steps():
                await asyncio.sleep(0)
        asyncio.run(main())
    """),
    answered("trains in a thread", """
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """),
    answered("trains in a thread that nobody waits for", """
        threading.Thread(target=train, args=(500,)).start()
    """),
    answered("trains in two threads at once", """
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """),
    answered("trains in an executor", """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            pool.submit(train).result()
    """),
    answered("trains in a recursion", """
        def descend(depth):
            next(losses)
            if depth:
                descend(depth - 1)
        losses = steps()
        while True:
            descend(100)
    """),
    answered("trains in a callback of a signal", """
        signal.signal(signal.SIGUSR1, lambda *_: train())
        signal.raise_signal(signal.SIGUSR1)
    """),
    answered("makes a new model at every step", """
        while True:
            train(1)
    """),
    answered("makes the model larger at every step", """
        sizes = iter(range(1, 10**6))
        while True:
            layer = torch.nn.Linear(8, next(sizes) % 100 + 1)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            layer(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    """),
    answered("has steps of many lengths", """
        for number, _ in enumerate(steps()):
            time.sleep(0.001 * (number % 5))
    """),
    answered("has an optimizer of its own that raises in its hooks' way", """
        class Mine(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, {})
            def step(self, closure=None):
                with torch.no_grad():
                    for group in self.param_groups:
                        for parameter in group["params"]:
                            parameter -= 0.01 * parameter.grad
        model = torch.nn.Linear(4, 1)
        optimizer = Mine(model.parameters())
        while True:
            optimizer.zero_grad()
            model(torch.ones(8, 4)).sum().backward()
            optimizer.step()
    """),
    answered("has no optimizer", """
        weight = torch.zeros(4, requires_grad=True)
        while True:
            (weight - 1).square().sum().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
    """),
    answered("steps without gradients", """
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.ones(8, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()
    """),
    answered("has hooks that raise what they catch", """
        model = torch.nn.Linear(4, 1)
        model.register_forward_hook(lambda *_: None)
        model.weight.register_hook(lambda gradient: gradient * float("nan"))
        optimizer = torch.optim.Adam(model.parameters())
        while True:
            optimizer.zero_grad()
            model(torch.ones(8, 4)).sum().backward()
            optimizer.step()
    """),
    answered("trains on batches of no samples", """
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            model(torch.ones(0, 4)).sum().backward()
            optimizer.step()
    """),
    answered("keeps the graphs of all steps", """
        losses = []
        for loss in steps():
            losses.append(loss)
    """),
    answered("checks each loss by hand", """
        for loss in steps():
            assert loss.item() > 0
            print(loss)
    """),
    answered("changes its random numbers", """
        for number, _ in enumerate(steps()):
            torch.manual_seed(number)
    """),
    answered("has data without end", _on_loader("""
        class Endless(IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.ones(16)
        train_on(DataLoader(Endless(), batch_size=8))
    """)),
    answered("has data that writes", _on_loader("""
        class Writes(Dataset):
            def __len__(self):
                return 100
            def __getitem__(self, index):
                with open("data/train.csv", "a") as file:
                    file.write(f"{index}\\n")
                return torch.ones(16)
        train_on(DataLoader(Writes(), batch_size=8))
    """)),
    answered("has data that says that it is endless", _on_loader("""
        class Long(Dataset):
            def __len__(self):
                return 2**62
            def __getitem__(self, index):
                return torch.ones(16)
        train_on(DataLoader(Long(), batch_size=8))
    """)),
    answered("has data that fails to be compared", _on_loader("""
        class Odd(Dataset):
            def __len__(self):
                return 100
            def __getitem__(self, index):
                return torch.ones(16)
            def __getattr__(self, name):
                raise AttributeError(name)
            def __eq__(self, other):
                raise TypeError("not to be compared")
            __hash__ = None
        train_on(DataLoader(Odd(), batch_size=8))
    """)),
    answered("has workers that write", _on_loader("""
        class Writes(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                Path("data/train.csv").write_text(str(index))
                return torch.ones(16)
        train_on(DataLoader(Writes(), batch_size=8, num_workers=2, persistent_workers=True))
    """)),
    refused("has workers that end", r"raised RuntimeError.*exited unexpectedly", _on_loader("""
        class Ends(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                if torch.utils.data.get_worker_info():
                    os._exit(3)
                return torch.ones(16)
        loader = DataLoader(Ends(), batch_size=8, num_workers=1, worker_init_fn=print)
        train_on(loader)
    """)),
    refused("has data that fails", r"raised IndexError: no more.*train\.py", _on_loader("""
        class Fails(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                raise IndexError("no more")
        train_on(DataLoader(Fails(), batch_size=8))
    """)),
    refused("has data of other lengths", r"raised RuntimeError: stack expects", _on_loader("""
        class Ragged(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                return torch.ones(16 + index % 2)
        train_on(DataLoader(Ragged(), batch_size=8))
    """)),
    refused("has data that never comes", r"within 1 s; stuck at train\.py", _on_loader("""
        class Waits(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                time.sleep(120)
        train_on(DataLoader(Waits(), batch_size=8))
    """), time_limit_s=1.0),
    refused("wants a GPU of the newest kind", r"train\.py:8", """
        assert torch.cuda.is_available(), "no GPU"
        if torch.cuda.get_device_capability()[0] < 99:
            sys.exit("this GPU is too old")
        train()
    """),
    answered("wants a GPU", """
        if not torch.cuda.is_available():
            sys.exit("no GPU, no training")
        train()
    """),
    answered("resets, empties and waits for a GPU", """
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        torch.cuda.manual_seed_all(3)
        train()
    """),
    answered("evaluates longer than it trains", """
        model = torch.nn.Linear(16, 16)
        for _ in steps():
            with torch.no_grad():
                for _ in range(20):
                    model(torch.ones(8, 16))
    """),
)  # fmt: skip
