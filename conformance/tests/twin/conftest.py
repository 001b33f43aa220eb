"""The twin's tests use one thread: they run beside others on small machines."""

import torch

torch.set_num_threads(1)
