"""Which training framework runs the step, and fixes by its own arguments.

Where a framework runs the loop, the user cannot change the line that a rule speaks of. A text may
hold ``{fix}``, what the rule says for a loop of the user's own, ``{algorithm}``, the class that
learns, ``{size}``, the argument that says how many samples one of its steps has, and ``{eps}``,
what the class sets by itself only where no other setting of its optimizer is given.

Source: the signatures of transformers 5.23, lightning 2.6, stable-baselines3 2.9 and
accelerate 1.15; a test compares them with the versions that are installed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from breakeven.advise.events import common_start, line_of, lines_where
from breakeven.advise.rule import Match, RuleInput

TRANSFORMERS_FIXES = {
    "BATCH001": "{fix}: TrainingArguments(per_device_train_batch_size=...)",
    "MEM001": "{fix}: TrainingArguments(per_device_train_batch_size=..., "
    "gradient_accumulation_steps=..., gradient_checkpointing=True, bf16=True)",
    "LAUNCH001": "TrainingArguments(per_device_train_batch_size=...) larger, or "
    'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")',
    "DEV002": "TrainingArguments(use_cpu=False)",
    "COPY001": "TrainingArguments(dataloader_pin_memory=True, "
    'accelerator_config={"non_blocking": True})',
    "COPY004": "inside transformers: not an argument; with "
    "TrainingArguments(dataloader_pin_memory=False) the data set may hold its tensors on the GPU",
    "LOAD001": "TrainingArguments(dataloader_num_workers=4, dataloader_persistent_workers=True)",
    "LOAD002": "inside transformers: not an argument; give the data set a __getitems__ that "
    "indexes all samples of a batch at once, or "
    "TrainingArguments(dataloader_num_workers=4, dataloader_persistent_workers=True)",
    "LOAD003": "TrainingArguments(dataloader_persistent_workers=True), or "
    "TrainingArguments(dataloader_num_workers=0) for small data",
    "LOAD004": "TrainingArguments(dataloader_num_workers=min(8, os.cpu_count() or 1))",
    "OPT001": 'TrainingArguments(optim="adamw_torch_fused")',
    "OPT002": 'TrainingArguments(optim="adamw_torch_fused")',
    "PREC002": "TrainingArguments(tf32=True), or TrainingArguments(bf16=True)",
    "RUN002": "one process for each GPU, as torchrun or accelerate launch start them: Trainer "
    "wraps the model in DataParallel where one process sees several GPUs",
    "RUN003": 'TrainingArguments(eval_strategy="epoch"), or '
    "TrainingArguments(eval_steps=...) larger",
    "RUN004": 'TrainingArguments(save_strategy="epoch"), or '
    "TrainingArguments(save_steps=...) larger",
    "SYNC001": "TrainingArguments(logging_steps=500, logging_nan_inf_filter=False)",
    "SYNC005": "TrainingArguments(logging_nan_inf_filter=False)",
    "SYNC006": "TrainingArguments(max_grad_norm=0) clips nothing; else it is not an argument",
    "CPU006": 'TrainingArguments(torch_compile=True, optim="adamw_torch_fused"), or '
    "TrainingArguments(per_device_train_batch_size=...) larger",
}
LIGHTNING_FIXES = {
    "BATCH001": "{fix}: DataLoader(..., batch_size=...)",
    "MEM001": '{fix}: Trainer(accumulate_grad_batches=..., precision="bf16-mixed")',
    "LAUNCH001": "DataLoader(..., batch_size=...) larger, or "
    'trainer.fit(torch.compile(model, mode="reduce-overhead"), ...)',
    "DEV002": 'Trainer(accelerator="gpu")',
    "COPY001": "DataLoader(..., pin_memory=True): Lightning copies without waiting then",
    "COPY004": "DataLoader(..., num_workers=0) over a data set that holds its tensors on the GPU",
    "LOAD001": "{fix}",
    "LOAD002": "DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, False), "
    "batch_size=None) indexes whole batches",
    "LOAD003": "{fix}",
    "LOAD004": "{fix}",
    "OPT001": "{fix}, in configure_optimizers",
    "OPT002": "{fix}, in configure_optimizers",
    "OPT003": "{fix}; Lightning calls it so unless optimizer_zero_grad is overridden",
    "PREC002": 'torch.set_float32_matmul_precision("high"), or Trainer(precision="bf16-mixed")',
    "RUN001": "Trainer(detect_anomaly=False)",
    "RUN003": "Trainer(val_check_interval=...) larger, or Trainer(check_val_every_n_epoch=...)",
    "RUN004": "ModelCheckpoint(every_n_train_steps=...) larger, or "
    "ModelCheckpoint(train_time_interval=...)",
    "SYNC001": "self.log(..., on_step=False, on_epoch=True), or "
    "Trainer(log_every_n_steps=...) larger",
    "CPU006": "trainer.fit(torch.compile(model), ...), fused=True in configure_optimizers, or "
    "DataLoader(..., batch_size=...) larger",
}

# Steps of reinforcement learning are small: the CPU is the device to think of first.
_NOT_AN_ARGUMENT = "inside stable_baselines3: not an argument; "
STABLE_BASELINES_FIXES = {
    "BATCH001": "{fix}: {algorithm}(..., {size}=...)",
    "MEM001": "{fix}: {algorithm}(..., {size}=...)",
    "LAUNCH001": "{algorithm}(..., {size}=...) larger; no argument compiles the policy",
    "DEV002": '{algorithm}(..., device="cuda")',
    "COPY001": _NOT_AN_ARGUMENT + "{algorithm}(..., {size}=...) larger copies less often, "
    '{algorithm}(..., device="cpu") not at all',
    "COPY003": _NOT_AN_ARGUMENT + "{algorithm}(..., {size}=...) larger copies less often, "
    '{algorithm}(..., device="cpu") not at all',
    "OPT001": "{algorithm}(..., policy_kwargs=dict(optimizer_kwargs=dict(foreach=True{eps})))",
    "OPT002": "{algorithm}(..., policy_kwargs=dict(optimizer_kwargs=dict(fused=True{eps})))",
    "PREC002": 'inside stable_baselines3: not an argument; torch.set_float32_matmul_precision("'
    'high") before {algorithm}(...)',
    "SYNC001": _NOT_AN_ARGUMENT + "{algorithm}(..., {size}=...) larger reads less often, "
    '{algorithm}(..., device="cpu") waits for nothing',
    "SYNC004": _NOT_AN_ARGUMENT + '{algorithm}(..., device="cpu") waits for nothing',
    "SYNC005": _NOT_AN_ARGUMENT + '{algorithm}(..., device="cpu") waits for nothing',
    "SYNC007": "torch.distributions.Distribution.set_default_validate_args(False) once, before "
    "{algorithm}(...)",
    "CPU006": "{algorithm}(..., {size}=...) larger, or "
    "{algorithm}(..., policy_kwargs=dict(optimizer_kwargs=dict(fused=True{eps})))",
}
# Of the others it is `batch_size`.
_SIZES = {"A2C": "n_steps"}
# Their policies choose this epsilon of Adam, but only where they are given no settings for it.
_WITH_EPSILON = ("A2C", "PPO")
ACCELERATE_FIXES = {
    "MEM001": '{fix}: Accelerator(gradient_accumulation_steps=..., mixed_precision="bf16")',
    "LAUNCH001": '{fix}, as by Accelerator(dynamo_backend="cudagraphs")',
    "DEV002": "Accelerator(cpu=False)",
    "COPY001": "DataLoader(..., pin_memory=True), and "
    "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))",
    "PREC002": 'Accelerator(mixed_precision="bf16"), or torch.set_float32_matmul_precision("high")',
}


class _Traits(NamedTuple):
    """How a framework is known.

    Args:
        name: As its users call it.
        packages: Those whose function the user's line calls.
        function: What that function is called, its class in front if that is always the same;
            empty for any.
        holders: What the user calls with the settings.
    """

    name: str
    packages: tuple[str, ...]
    function: str
    holders: tuple[str, ...]


class Framework(Enum):
    """A library that runs training steps; of two, the first runs the other."""

    TRANSFORMERS = _Traits(
        "transformers", ("transformers", "trl"), "train",
        ("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments"),
    )  # fmt: skip
    LIGHTNING = _Traits(
        "Lightning", ("lightning", "pytorch_lightning"), "Trainer.fit",
        ("Trainer", "ModelCheckpoint"),
    )  # fmt: skip
    STABLE_BASELINES = _Traits(
        "stable_baselines3", ("stable_baselines3", "sb3_contrib"), "learn",
        ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"),
    )  # fmt: skip
    ACCELERATE = _Traits("accelerate", ("accelerate",), "", ("Accelerator",))


FRAMEWORK_FIXES = {
    Framework.TRANSFORMERS: TRANSFORMERS_FIXES,
    Framework.LIGHTNING: LIGHTNING_FIXES,
    Framework.STABLE_BASELINES: STABLE_BASELINES_FIXES,
    Framework.ACCELERATE: ACCELERATE_FIXES,
}


def fix_of(case: RuleInput, code: str, match: Match) -> str:
    """Return what to change: an argument of the framework if one runs the step.

    Args:
        case: The step.
        code: Of the rule.
        match: What it found, with its fix for a loop of the user's own.
    """
    framework, algorithm = case.once(_running_framework)
    if framework is None or not _is_below(case, framework, match):
        return match.fix
    # The loader or the optimizer that a finding is about may be made by the user.
    own = ("DataLoader", *(optimizer.name for optimizer in case.facts.optimizers))
    if framework is Framework.TRANSFORMERS and case.sources.call_at(match.location, *own):
        return match.fix
    if text := FRAMEWORK_FIXES[framework].get(code):
        # Braces of Python code stay, so this is no format string.
        return (
            text.replace("{algorithm}", algorithm)
            .replace("{size}", _SIZES.get(algorithm, "batch_size"))
            .replace("{eps}", ", eps=1e-5" if algorithm.endswith(_WITH_EPSILON) else "")
            .replace("{fix}", match.fix)
        )
    frames = frames_below(case, match)
    if not frames or framework is Framework.ACCELERATE:
        return match.fix
    # The innermost method of the framework: `Trainer.compute_loss`.
    names = (frame.rpartition(":")[2] for frame in frames if not frame.startswith("torch."))
    methods = [name for name in names if "." in name and "<locals>" not in name]
    where = f"in a subclass that overrides {methods[-1]}: " if methods else ""
    return f"inside {framework.value.name}: not an argument; {where}{match.fix}"


def frames_below(case: RuleInput, match: Match) -> tuple[str, ...]:
    """Return the functions of a framework that all of a finding lies in, below its line."""
    trace = case.trace
    line = line_of(match.location)
    members = [trace.events[index] for index in match.events]
    return common_start(trace.frames_of(event) for event in members if line_of(event) == line)


def _running_framework(case: RuleInput) -> tuple[Framework | None, str]:
    """Return what runs the step, and the class whose function the user's line calls: ``PPO``."""
    entries = {frames[0] for event in case.trace.events if (frames := case.trace.frames_of(event))}
    for framework in Framework:
        packages, function = framework.value.packages, framework.value.function
        for entry in sorted(entries):
            module, _, called = entry.partition(":")
            is_called = not function or f".{called}".endswith(f".{function}")
            if module.partition(".")[0] in packages and is_called:
                return framework, called.rpartition(".")[0]
    return None, ""


def _is_below(case: RuleInput, framework: Framework, match: Match) -> bool:
    """Return whether a finding is of what a framework does, and no line of the user's own.

    That is so for what has no line, for what lies below a line that starts the framework's step,
    and for the line that holds the framework's settings.
    """
    trace = case.trace
    return (
        match.location is None
        or any(trace.frames_of(trace.events[index]) for index in match.events)
        or line_of(match.location) in case.once(_lines_of_frameworks)
        or case.sources.call_at(match.location, *framework.value.holders) is not None
    )


def _lines_of_frameworks(case: RuleInput) -> frozenset[tuple[str, int]]:
    return lines_where(case.trace, lambda event: bool(case.trace.frames_of(event)))
