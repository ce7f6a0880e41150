"""The matrices here are small: one thread each is fastest, and leaves the other core to another worker."""

import torch

torch.set_num_threads(1)
