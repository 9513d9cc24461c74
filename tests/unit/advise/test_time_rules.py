from __future__ import annotations

from textwrap import dedent

import pytest

from breakeven.advise import Rule
from breakeven.trace import NEVER_ON_DEVICE, Event, Phase, RunFacts, Sync
from factories.cases import lines, made_up_case, marked, rule_of
from factories.steps import at, loader_facts, op

NO_SYNC, WARMUP = rule_of("TIME001"), rule_of("TIME002")


def step_of(source: str) -> tuple[Event, ...]:
    """Return the trace of a step whose lines carry ``# work``, ``# wait`` and ``# step``."""
    events: list[Event] = []
    for number, line in enumerate(dedent(source).splitlines(), 1):
        if "# work" in line:
            events.append(op(100, host_ns=10, line=number))
        if "# step" in line:
            events.append(op(100, host_ns=10, line=number, phase=Phase.OPTIMIZER))
        if "# wait" in line:
            events.append(Sync(kind="item", location=at(number)))
    return tuple(events) or (op(100, line=999),)


def found(rule: Rule, source: str, **facts: object):
    case = made_up_case(*step_of(source), source=source, facts=RunFacts(**facts))
    return lines(rule.detect(case))


def marks(source: str) -> list[int]:
    return marked(source, "# here")


def test_a_wrong_measurement_is_an_error() -> None:
    source = UNSYNCED["plain"]
    (one,) = NO_SYNC.detect(made_up_case(*step_of(source), source=source))
    assert one.is_error
    assert one.evidence == "work of line 6 is timed from line 4, and nothing waits for it"


UNSYNCED = {
    "plain": """\
        import time
        model = Net().cuda()
        for x in loader:
            start = time.time()
            step()
            out = model(x)  # work
            elapsed = time.time() - start  # here
            print(elapsed)
        """,
    "two readings": """\
        from time import perf_counter as tic
        for x in loader:
            t0 = tic()
            out = model(x)  # work
            t1 = tic()  # here
            print((t1 - t0) * 1000)
        """,
    "alias": """\
        import timeit
        clock = timeit.default_timer
        for x in loader:
            t0 = clock()
            out = model(x)  # work
            times.append(clock() - t0)  # here
        """,
    "the clock goes round": """\
        import time as t
        last = t.perf_counter()
        for x in loader:
            loss = train(x)  # work
            now = t.perf_counter()  # here
            print(now - last)
            last = now
        """,
    "attribute": """\
        import time
        class Trainer:
            def run(self):
                self.began = time.monotonic()
                self.model(self.x)  # work
                self.took = time.monotonic() - self.began  # here
        """,
    "waits for the wrong thing": """\
        import time
        for x in loader:
            torch.cuda.synchronize()
            start = time.time()
            out = model(x)  # work
            print(time.time() - start)  # here
        """,
}


@pytest.mark.parametrize("name", UNSYNCED)
def test_a_clock_that_is_read_too_early(name: str) -> None:
    assert found(NO_SYNC, UNSYNCED[name]) == marks(UNSYNCED[name])


HEALTHY = {
    "no clock by the name of one": """\
        import time
        for x in loader:
            before = meter.record()
            out = model(x)  # work
            print(meter.record() - before, env.time() - before)
        """,
    "synchronize": """\
        import time
        for x in loader:
            start = time.time()
            out = model(x)  # work
            torch.cuda.synchronize()
            print(time.time() - start)
        """,
    "synchronize where there is a GPU": """\
        import time
        sync = torch.cuda.synchronize if cuda else (lambda: None)
        def wait():
            if cuda:
                torch.cuda.synchronize()
        for x in loader:
            start = time.time()
            out = model(x)  # work
            sync()
            print(time.time() - start)
            start = time.time()
            out = model(x)  # work
            wait()
            print(time.time() - start)
        """,
    "a value is read": """\
        import time
        for x in loader:
            start = time.time()
            loss = train(x)  # work
            total += float(loss)  # wait
            print(time.time() - start)
        """,
    "printed with the loss": """\
        import time
        start = time.time()
        for x in loader:
            loss = criterion(model(x))  # work
            loss.backward()
        print(f"{loss.item():.3f} after {time.time() - start:.1f} s")
        """,
    "the loss is printed first": """\
        import time
        start = time.time()
        for x in loader:
            loss = criterion(model(x))  # work
            loss.backward()
        print("loss", loss)
        print(time.time() - start)
        """,
    "waiting within the function that works": """\
        import time
        def train(x):
            loss = model(x)  # work
            return loss.item()  # wait
        for x in loader:
            start = time.time()
            train(x)
            print(time.time() - start)
        """,
    "only loading is timed": """\
        import time
        end = time.time()
        for x in loader:
            data_time.update(time.time() - end)
            out = model(x)  # work
            losses.update(out.item())  # wait
            batch_time.update(time.time() - end)
            end = time.time()
        """,
    "a limit of time": """\
        import time
        start = time.time()
        for x in loader:
            out = model(x)  # work
            if time.time() - start > 60:
                break
        while time.time() - start < 60:
            model(x)
        """,
    "never shown": """\
        import time
        start = time.time()
        out = model(x)  # work
        elapsed = time.time() - start
        """,
    "a trainer's loop": """\
        import time
        start = time.time()
        trainer.fit(model, loader)  # work
        print(time.time() - start)
        """,
    "a whole training": """\
        import time
        start = time.time()
        for epoch in range(10):
            for x in loader:
                loss = model(x)  # work
                optimizer.step()  # step
        print("trained in", time.time() - start)
        """,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_clock_that_is_read_in_time(name: str) -> None:
    assert found(NO_SYNC, HEALTHY[name]) == []


def test_a_script_for_the_cpu_needs_no_waiting() -> None:
    source = UNSYNCED["plain"]
    case = made_up_case(*step_of(source), source=source, caveats=(NEVER_ON_DEVICE,))
    assert NO_SYNC.detect(case) == ()


EPOCH = """\
import time
start = time.time()
for x in loader:
    loss = model(x)  # work
    optimizer.step()  # step
print(time.time() - start)  # here
"""


@pytest.mark.parametrize(("num_samples", "is_found"), [(32 * 100, True), (32 * 20_000, False)])
def test_an_epoch_of_many_launches_is_long_enough(num_samples: int, is_found: bool) -> None:
    # Two launches per step: 200 stay in the queue, 40,000 do not.
    loader = loader_facts(batch_size=32, num_samples=num_samples)
    expected = marks(EPOCH) if is_found else []
    assert found(NO_SYNC, EPOCH, loaders=(loader,)) == expected


COLD = {
    "a mean over steps": """\
        import time
        torch.cuda.synchronize()
        start = time.time()
        for _ in range(50):
            train_step()  # work
        torch.cuda.synchronize()
        elapsed = time.time() - start  # here
        print(elapsed / 50)
        """,
    "a throughput": """\
        import time
        start = time.time()
        for x in loader:
            train_step(x)  # work
        torch.cuda.synchronize()
        print(n * 64 / (time.time() - start))  # here
        """,
    "in a function": """\
        import time
        def main():
            t0 = time.perf_counter()
            for _ in range(steps):
                loss = train_step()  # work
            loss.item()
            t1 = time.perf_counter()  # here
            total = t1 - t0
            print(f"{1000 * total / steps:.2f} ms")
        main()
        """,
}


@pytest.mark.parametrize("name", COLD)
def test_first_steps_in_a_mean(name: str) -> None:
    assert found(WARMUP, COLD[name]) == marks(COLD[name])


WARM = {
    "steps before": """\
        import time
        for _ in range(5):
            train_step()  # work
        start = time.time()
        for _ in range(50):
            train_step()  # work
        print((time.time() - start) / 50)
        """,
    "the clock starts late": """\
        import time
        for step in range(60):
            if step == 10:
                start = time.time()
            train_step()  # work
        print((time.time() - start) / 50)
        """,
    "by name": """\
        import time
        def run(n, warmup=3):
            start = time.time()
            for _ in range(n):
                train_step()  # work
            print((time.time() - start) / n)
        """,
    "left out of the list": """\
        import time
        times = []
        for x in loader:
            t0 = time.time()
            train_step(x)  # work
            times.append(time.time() - t0)
        print(sum(times[3:]) / len(times[3:]))
        """,
    "left out by a condition": """\
        import time
        for step, x in enumerate(loader):
            t0 = time.time()
            train_step(x)  # work
            if step > 5:
                times.append(time.time() - t0)
        print(sum(times) / len(times))
        """,
    "the median": """\
        import time
        for x in loader:
            t0 = time.time()
            train_step(x)  # work
            times.append(time.time() - t0)
        print(statistics.median(times))
        """,
    "a total": """\
        import time
        start = time.time()
        for x in loader:
            train_step(x)  # work
        print(f"took {(time.time() - start) / 60:.1f} min")
        """,
    "one time per epoch": """\
        import time
        for epoch in range(5):
            start = time.time()
            for x in loader:
                train_step(x)  # work
            print((time.time() - start) / len(loader))
        """,
    "very many steps": """\
        import time
        start = time.time()
        for _ in range(5000):
            train_step()  # work # step
        print((time.time() - start) / 5000)
        """,
    "called twice": """\
        import time
        def bench(n):
            start = time.time()
            for _ in range(n):
                train_step()  # work
            return (time.time() - start) / n
        bench(3)
        print(bench(100))
        """,
}


@pytest.mark.parametrize("name", WARM)
def test_means_without_the_first_steps(name: str) -> None:
    assert found(WARMUP, WARM[name]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = " + "(" * 90 + "time.time()" + ")" * 90 + " - x\n",
        "import time\nx = time.time()" + " - 1" * 3000 + "\n",
        "import time\n" + "".join(" " * i + "for a in b:\n" for i in range(19)) + " " * 19 + "pass",
        "import time\nwith time.time() - time.time() as x: print(x)\n",
    ],
)
def test_odd_sources_break_nothing(source: str) -> None:
    assert found(NO_SYNC, source) == []
    assert found(WARMUP, source) == []


BOTH = {
    "loop": """\
        for device in ["cpu", "cuda"]:
            run(torch.device(device))
        """,
    "loop over a name": """\
        devices = ["cpu"]
        if torch.cuda.is_available():
            devices.append("cuda:0")
        for name in devices:
            run(name)
        """,
}
ONE = {
    "choice": """\
        run("cuda" if torch.cuda.is_available() else "cpu")
        """,
    "option": """\
        parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
        run(parser.parse_args().device)
        """,
    "calls of others": """\
        torch.device("cpu")
        torch.load(path, map_location="cuda")
        """,
}
RUN = """\
import time
def run(device):
    start = time.time()
    for _ in range(50):
        model(x).sum().backward()  # work
        optimizer.step()  # step
    print(device, time.time() - start)  # here
"""


@pytest.mark.parametrize("name", [*BOTH, *ONE])
def test_devices_that_are_timed_one_after_the_other(name: str) -> None:
    # The steps that are recorded are those on the CPU, which comes first.
    source = dedent(RUN) + dedent((BOTH | ONE)[name])
    case = made_up_case(*step_of(source), source=source, caveats=(NEVER_ON_DEVICE,))
    assert lines(NO_SYNC.detect(case)) == (marks(source) if name in BOTH else [])


def test_steps_that_were_recorded_before_the_clock_starts() -> None:
    source = """\
        import time
        def update(x):
            model(x).sum().backward()  # work
            optimizer.step()  # step
        for _ in range(20):
            update(x)
        start = time.time()
        for _ in range(100):
            update(x)
        print(time.time() - start)  # here
        """
    assert found(NO_SYNC, source) == marks(source)
    assert found(WARMUP, source) == []
