"""Commands for real models: sft, fit."""

# The handlers import the rest, which takes seconds, when they run.
from lldlib.cli.options import Fit, Sft


def sft_command(command: Sft) -> int:
    """Warm-start or resume one, with a progress line."""
    from lldlib.train.supervised import SftRun

    if not command.config.files and not command.resume:
        raise ValueError("name the train files with gold passages: --files FILE ...")
    if command.config.files and command.resume:
        raise ValueError("--resume goes on by the run's own settings: give it only --out")
    SftRun(command.config, command.out, resume=command.resume).run()
    print(f"policy: {command.out / 'policy'}")
    return 0


def fit_command(command: Fit) -> int:
    """Print the parts and the verdict; 1 if it does not fit."""
    from lldlib.policy.load import LoraSettings
    from lldlib.policy.memory import Shape, estimate

    load = command.load
    fit = estimate(
        command.policy,
        command.gpu,
        Shape(command.rows, command.rollouts, command.tokens),
        quantize=load.quantize,
        lora=LoraSettings(load.lora_rank, load.lora_alpha) if load.lora_rank else None,
        dtype=load.dtype,
        gradient_checkpointing=load.gradient_checkpointing,
        reference=command.reference,
    )
    print(fit.table())
    return 0 if fit.fits else 1
