"""lldlib: why GRPO training of a search agent collapses, and what stops it."""

import logging

__version__ = "0.1.0"

# On CPUs with AVX512-BF16 bitsandbytes warns at its import that it cannot fetch a kernel. The
# kernel has no gradient, and `policy.load.load_policy` keeps it off wherever it could run.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
