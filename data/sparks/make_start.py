"""Make data/starts/sparks, the start of the world of sparks: python data/sparks/make_start.py."""

import torch

from lldlib.config import data_dir
from lldlib.policy.load import save_policy
from lldlib.train.lessons import SparksConfig
from lldlib.train.supervised import sparks_policy

torch.set_num_threads(1)
save_policy(sparks_policy(SparksConfig()), data_dir() / "starts" / "sparks")
