"""A program that makes the gate's probes to the FlashInfer that it finds, on a pretended device."""

import json
import sys
from typing import Any

import torch

from conformance.gate.probes import SMS, Recorder, observe
from conformance.twin.eager import Eager
from conformance.twin.pretended import package, pretending


def main(returns_size: bool) -> None:
    device = Eager(SMS)
    package(device)

    def native(enqueue: Any = None) -> Recorder:
        return Recorder(returns_size)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return device.adopt(tensor)

    with pretending(native) as flashinfer, device.active():
        seen = observe(
            flashinfer.mla.BatchMLAPagedAttentionWrapper,
            lambda wrapper: len(device.waits),
            place=place,
        )
    sys.stdout.write(f"\n{flashinfer.__version__}\n{json.dumps(seen)}\n")


if __name__ == "__main__":
    main(sys.argv[1] == "size")
