"""What a scene draws: the same bytes on any machine, told by their SHA-256 and never stored."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core.case import Step
from conformance.core.inputs import StepInputs, World
from conformance.core.population import config_of
from conformance.hardware.scenes import Scene


@dataclass(frozen=True)
class Drawn:
    """A scene's cache and block tables, and its last step with inputs."""

    world: World
    step: Step
    inputs: StepInputs

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each of them, by name."""
        return digests(self.world, self.inputs)


def draw(scene: Scene, device: str = "cpu") -> Drawn:
    """Draw a scene's inputs anew."""
    config = config_of(scene.case, scene.steps, full_width=True)
    world = World(scene.case, config, scene.steps, device)
    return Drawn(world, scene.step, world.draw_step(scene.step))


def digests(world: World, inputs: StepInputs) -> dict[str, str]:
    """Return the SHA-256 of drawn tensors, by name."""
    named = {
        "cache": world.raw,
        "block_table": world.block_table,
        "topk": inputs.topk,
        "q_nope": inputs.q_nope,
        "q_pe": inputs.q_pe,
    }
    if world.scales is not None:
        named["group_scales"] = world.scales
    return {name: sha256(tensor) for name, tensor in named.items()}


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's elements."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
