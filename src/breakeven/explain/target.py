"""From a script to an explanation: run it, record it, take its step apart."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.capture import KEEP_NOTHING, Keep, Launcher
from breakeven.errors import Caveat
from breakeven.explain.cpu_trials import try_cpu_settings
from breakeven.explain.explanation import chosen_rules, explained
from breakeven.progress import Progress
from breakeven.session import Session, program_facts
from breakeven.trace import ScaledTrace
from breakeven.verdict import ExplainReport, NoCrossover


def explain_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "here",
    time_limit_s: float = 300.0,
    rules: Sequence[str] = (),
    tries_cpu: bool = True,
    budget_s: float = 1.0,
    keep: Keep = KEEP_NOTHING,
    progress: Progress | None = None,
    launcher: Launcher | None = None,
) -> ExplainReport:
    """Explain what holds the training step of ``target`` back on a GPU, and on this CPU.

    The target runs in child processes that end by themselves after enough steps; the files that it
    writes until then are thrown away.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs; the step is taken apart on the first. By default a choice of six,
            and the step of the one that the verdict is about.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run, in seconds.
        rules: Codes or causes of the rules whose findings are wanted; all by default.
        tries_cpu: Measure the step under other settings of this CPU too, which takes some
            seconds; without it, findings that need that are not looked for.
        budget_s: Seconds of plain steps that are enough when they are short.
        keep: What of the target's side effects is to be real; by default nothing.
        progress: Progress callback.
        launcher: Makes the processes, where several targets are explained after one another; each
            call has its own by default, which takes some seconds to import torch.

    Raises:
        BreakevenError: The target gave no answer, or a device, host or rule is unknown.
    """
    wanted = chosen_rules(rules)
    session = Session(
        target, arguments=arguments, is_module=is_module, devices=devices, host=host,
        time_limit_s=time_limit_s, budget_s=budget_s, keep=keep, progress=progress,
        launcher=launcher,
    )  # fmt: skip
    with session:
        scaled, unscaled = _other_sizes(session)
        step, cpu = session.step, None
        if tries_cpu:
            cpu = try_cpu_settings(session.runs, step.as_set, step.traced.trace, session.host)
        session.progress.begin("simulating the step with and without each fix")
        report = explained(
            step.compared,
            # Of several by default, the one that the verdict is about.
            session.devices[0] if devices else step.compared.best.device,
            target=session.target.label,
            host=step.host_summary,
            recording=step.recorded(scaled=scaled, cpu=cpu),
            rules=wanted,
            caveats=step.caveats((*session.ready.caveats, *unscaled)),
            program=program_facts(step.as_set, step.plain),
        )
        session.progress.end()
    return session.with_side_effects(report)


def _other_sizes(session: Session) -> tuple[ScaledTrace | None, tuple[Caveat, ...]]:
    """Return the step at other batch sizes, where a DataLoader sets its size, or why not."""
    scaled = session.batch_sizes and session.batch_sizes.record_other_size()
    if not isinstance(scaled, NoCrossover):
        return scaled, ()
    message = f"The step could not be simulated at other batch sizes. {scaled.none_because}"
    return None, (Caveat(code="one-batch-size", message=message),)
