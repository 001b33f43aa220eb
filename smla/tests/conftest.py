"""Shared by smla's tests: one thread each, so that several workers fit on a small machine."""

import torch

torch.set_num_threads(1)
