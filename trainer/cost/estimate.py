"""What a configuration will cost, put together."""

from dataclasses import dataclass

from trainer.config import Config
from trainer.cost.memory import Parts, learner_memory, serving_memory
from trainer.cost.seconds import H200, Gpu, num_steps, run_hours, step_seconds
from trainer.cost.shape import Shape, shape_of
from trainer.cost.tokens import StepTokens, step_tokens
from trainer.engines.servers import addresses_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run is expected to take.

    Attributes:
        shape: The model's.
        gpus: Number of GPUs that learn.
        servers: Number of GPUs that only sample.
        gpu: What all of them are.
        step: Tokens of a step.
        learner: Bytes of a learner's GPU by part.
        sampler: Bytes by part of a GPU that only samples, or of what samples on the learner's.
        seconds: Of a step by stage; null where it is not known.
        steps: Until the run ends; null where it is not known.
        hours: Of the whole run; null where it is not known.
    """

    shape: Shape
    gpus: int
    servers: int
    gpu: Gpu
    step: StepTokens
    learner: Parts
    sampler: Parts
    seconds: dict[str, float | None]
    steps: float | None
    hours: float | None

    @property
    def held(self) -> dict[str, float]:
        """Bytes of each kind of GPU in all."""
        learner, sampler = sum(self.learner.values()), sum(self.sampler.values())
        if self.servers:
            return {"a learner": learner, "a server": sampler}
        return {"the GPU that learns and samples": learner + sampler}


def estimate(config: Config, *, gpus: int = 1, gpu: Gpu = H200) -> Estimate:
    """What a run of a configuration is expected to take. Nothing is loaded.

    Args:
        config: The run's; `engine.servers` says how many GPUs only sample, one an address.
        gpus: Number of GPUs that learn, one a process.
        gpu: What all of them are.

    Raises:
        UsageError: The size of the model, the task or the method is not known, or
            `engine.servers` holds what is no address.
    """
    shape, step = shape_of(config.model), step_tokens(config)
    servers = len(addresses_in(config.engine.servers))
    seconds = step_seconds(config, shape, step, gpus=gpus, servers=servers, gpu=gpu)
    return Estimate(
        shape=shape,
        gpus=gpus,
        servers=servers,
        gpu=gpu,
        step=step,
        learner=learner_memory(config, shape, step, gpus=gpus),
        sampler=serving_memory(config, shape, step, servers=servers),
        seconds=seconds,
        steps=num_steps(config, step),
        hours=run_hours(config, step, seconds),
    )
