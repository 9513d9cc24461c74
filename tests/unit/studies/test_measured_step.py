"""The step as its runs show it: on which threads, and how far it is believed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import LoaderUse, PlainRun, ThreadTrial
from breakeven.errors import Caveat
from breakeven.progress import SilentProgress
from breakeven.studies.measured_step import (
    MeasuredStep,
    TrainingLength,
    measure_target,
    steps_per_epoch,
    upper_bound_if_disturbed,
)
from breakeven.studies.runner import Change, Runner
from breakeven.timing import BUSY_MACHINE, EMULATED_ON_CPU, Measurement
from factories.runs import (
    SCRIPT,
    Answer,
    ScriptedLauncher,
    device_op,
    failure,
    loader_use,
    plain_run,
    traced_run,
)

DISTURBED = Measurement(samples_ns=(2_000_000,) * 9, waited_ns=(1_500_000,) * 9)
DOUBLED = Change(old_batch_size=32, new_batch_size=64)


def runner_of(*answers: Answer) -> tuple[Runner, ScriptedLauncher]:
    launcher = ScriptedLauncher(answers)
    return Runner(launcher, SCRIPT, 60.0, SilentProgress()), launcher


def measured(*answers: Answer) -> MeasuredStep:
    return measure_target(runner_of(traced_run(), *answers)[0])


def with_trial(as_set: Measurement, one_thread_ns: int) -> PlainRun:
    trial = ThreadTrial(num_threads=1, measurement=Measurement(samples_ns=(one_thread_ns,) * 9))
    return replace(plain_run(), num_threads=4, measurement=as_set, trials=(trial,))


@pytest.mark.parametrize(
    ("one_thread_ns", "num_results", "used"), [(500_000, 2, 1), (950_000, 2, 4), (2_000_000, 1, 4)]
)
def test_fewer_threads_are_used_where_they_are_clearly_faster(
    one_thread_ns: int, num_results: int, used: int
) -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    runner, launcher = runner_of(traced_run(), with_trial(as_set, one_thread_ns), plain_run())
    found = measure_target(runner)
    assert (found.as_set.num_threads, found.plain.num_threads) == (4, used)
    settings = ["1 thread", "4 threads"] if num_results == 2 else [""]
    assert [result.setting for result in found.results] == settings
    assert launcher.requests[1].tries_threads
    runner.time_at(DOUBLED, budget_s=0.4)
    assert launcher.requests[2].configuration.num_threads == (1 if used == 1 else 0)


def test_the_time_for_batches_is_that_of_the_threads_that_are_used() -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    run = replace(with_trial(as_set, 500_000), loader=loader_use(wait_ns=600_000.0))
    (trial,) = run.trials
    for wait_ns, expected in ((200_000.0, 200_000.0), (None, 600_000.0)):
        told = replace(run, trials=(replace(trial, loader_wait_ns=wait_ns),))
        found = measured(told)
        assert found.plain.num_threads == 1
        assert found.plain.loader is not None
        assert found.plain.loader.wait_ns == expected
        assert found.as_set.loader == run.loader


def test_a_disturbed_time_is_a_bound_that_a_slower_number_of_threads_does_not_raise() -> None:
    slow = with_trial(DISTURBED, 3_000_000)
    found = measured(slow)
    assert found.plain.num_threads == 4
    # What was left alone is shown all the same.
    assert [result.is_disturbed for result in found.results] == [False, True]
    # Four threads are at most four times as fast as one.
    assert found.results[1].low_ns == pytest.approx(750_000, rel=0.1)
    # Of two that are about as fast, the one that was left alone is the better evidence.
    alike = measured(with_trial(DISTURBED, 2_100_000))
    assert alike.plain.num_threads == 1


def test_recording_that_was_held_up_is_made_again_on_fewer_threads() -> None:
    alike = with_trial(Measurement(samples_ns=(1_000_000,) * 9), 1_050_000)
    held_up = traced_run(replace(device_op(), host_ns=20_000_000))
    runner, launcher = runner_of(held_up, alike, traced_run())
    found = measure_target(runner)
    assert (found.plain.num_threads, len(found.results)) == (1, 2)
    assert launcher.requests[2].is_traced
    assert launcher.requests[2].configuration.num_threads == 1
    # Or it was of steps that do more than most.
    assert [request.records_longer for request in launcher.requests] == [False, False, True]
    assert found.traced == traced_run()


def test_what_recording_adds_to_many_small_operators_is_no_reason_to_record_again() -> None:
    small = [replace(device_op(), host_ns=6_000)] * 1_000
    runner, launcher = runner_of(traced_run(*small), plain_run(2_000_000))
    assert len(measure_target(runner).traced.trace.ops) == 1_000
    assert [request.is_traced for request in launcher.requests] == [True, False]


def test_recordings_and_the_gpu_keep_the_threads_of_the_first() -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    answers = (traced_run(), with_trial(as_set, 500_000), traced_run(), plain_run())
    runner, launcher = runner_of(*answers)
    measure_target(runner)
    runner.record(DOUBLED, " at batch size 64")
    runner.time_on_gpu()
    assert [each.configuration.num_threads for each in launcher.requests[2:]] == [0, 0]


def test_a_script_that_needs_a_gpu_is_compared_at_its_best_too() -> None:
    fast = with_trial(Measurement(samples_ns=(1_000_000,) * 9), 1_000)
    runner, launcher = runner_of(traced_run(), failure(), fast, traced_run())
    assert measure_target(runner).plain.num_threads == 1
    timed = [each for each in launcher.requests if not each.is_traced]
    assert [(each.tries_threads, each.has_cuda) for each in timed] == [(True, False), (True, True)]


def busy_run(step_ns: int, load_fraction: float = 0.5) -> PlainRun:
    return replace(plain_run(step_ns), load_fraction=load_fraction)


def test_a_step_far_longer_than_its_parts_is_not_believed_beside_other_work() -> None:
    traced = traced_run(replace(device_op(), host_ns=1_000_000))
    assert upper_bound_if_disturbed(busy_run(4_900_000), traced) == busy_run(4_900_000)
    # On a quiet machine it takes what it takes.
    assert upper_bound_if_disturbed(busy_run(9_000_000, 0.1), traced) == busy_run(9_000_000, 0.1)
    # In fp32, where it was recorded, it would not take that long.
    emulated = replace(
        busy_run(9_000_000), caveats=(Caveat(code=EMULATED_ON_CPU, message="bf16 is emulated"),)
    )
    assert upper_bound_if_disturbed(emulated, traced) == emulated
    found = upper_bound_if_disturbed(busy_run(9_000_000), traced)
    assert found.measurement.is_disturbed
    assert found.measurement.estimate.low_ns < 1_000_000
    # Nothing is taken for waiting, or a GPU would be predicted without the script's own work.
    assert found.measurement.own_ns == 9_000_000
    assert found.phases is None
    (caveat,) = found.caveats
    assert caveat.code == BUSY_MACHINE
    assert "it took 9× the time of its operators" in caveat.message


def test_trials_that_are_not_believed_either_are_no_better() -> None:
    traced = traced_run(replace(device_op(), host_ns=1_000_000))
    as_set = Measurement(samples_ns=(9_000_000,) * 9)
    run = replace(with_trial(as_set, 9_500_000), load_fraction=0.5)
    assert upper_bound_if_disturbed(run, traced).trials == ()
    calm = replace(with_trial(as_set, 3_000_000), load_fraction=0.5)
    assert len(upper_bound_if_disturbed(calm, traced).trials) == 1


@pytest.mark.parametrize(
    ("length", "loader", "num_steps", "num_caveats"),
    [
        (TrainingLength(), loader_use(), None, 0),
        (TrainingLength(num_steps=7), None, 7, 0),
        (TrainingLength(num_epochs=3), replace(loader_use(32), batches_per_epoch=32), 96, 0),
        (TrainingLength(num_epochs=3), loader_use(32), None, 1),
        (TrainingLength(num_epochs=3), None, None, 1),
        # Two batches a step, and two steps for each batch.
        (
            TrainingLength(num_epochs=3),
            replace(loader_use(32), batches_per_epoch=32, batches_per_step=2),
            48,
            0,
        ),
        (
            TrainingLength(num_epochs=3),
            replace(loader_use(32), batches_per_epoch=32, fetching_fraction=0.5),
            192,
            0,
        ),
    ],
)
def test_epochs_tell_the_steps_where_the_length_of_the_data_is_known(
    length: TrainingLength, loader: LoaderUse | None, num_steps: int | None, num_caveats: int
) -> None:
    assert length.steps(steps_per_epoch(loader)) == num_steps
    assert len(length.caveats(steps_per_epoch(loader))) == num_caveats
