"""Fixtures of several test files.

The package is imported inside them only: pytest's shape checker must be in place first.
"""

import dataclasses
import os
import random
import signal
from collections import Counter

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach the network
# the suite runs in several processes, and some tests start more
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
# a shell starts what it puts in the background deaf to Ctrl-C, and children would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


# files of a minute or more
SLOW = ("test_browser.py", "test_install.py", "test_demo.py", "test_contributing.py")
NOTEBOOK = "test_it_runs_and_its_solutions_pass"  # the run of a notebook: it shares nothing


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no worker is left with it; a browser's are long."""
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: (item.path.name not in SLOW, not item.name.startswith(NOTEBOOK)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """A file's tests run on one worker, for its fixtures, but each notebook's run by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if NOTEBOOK in nodeid else nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.fixture(scope="session")
def guesser(tmp_path_factory) -> str:
    """The folder of a very small searcher that answers at once with one of eight frequent answers.

    Made in a second from random weights, it is right now and then, so that a probe set exists and
    groups are mixed.
    """
    from lldlib.config import WarmstartConfig
    from lldlib.policy.load import save_policy
    from lldlib.rollout.loop import TokenText
    from lldlib.train.supervised import make_tiny
    from lldlib.world.atlas import World
    from lldlib.world.protocol import TINY

    world = World.load()
    policy = make_tiny(world, WarmstartConfig(width=16, layers=1, heads=2))
    questions = world.sample_questions(random.Random(0), 512, "train")
    frequent = Counter(question.answers[0] for question in questions).most_common(8)
    text, optimizer = TokenText(policy.tokenizer), torch.optim.Adam(policy.model.parameters(), 0.01)
    for step in range(100):
        prompt = text.encode(TINY.prompt(questions[step].text))
        answers = [text.encode(f"<answer> {answer} </answer>") for answer, _ in frequent]
        tokens = torch.tensor([prompt + answer for answer in answers])
        labels = tokens.clone()
        labels[:, : len(prompt)] = -100
        loss = policy.model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("guesser")
    save_policy(policy, folder)
    return str(folder)


@pytest.fixture
def answering_pays(monkeypatch) -> None:
    """A random policy never answers right, so any answer is worth 1 here: groups are mixed."""
    from helpers import answered

    from lldlib.world.environment import RULES

    monkeypatch.setitem(RULES, "qa", dataclasses.replace(RULES["qa"], reward=answered))


@pytest.fixture
def micro(guesser) -> dict[str, object]:
    """Overrides of `train_config` that make a run of two batches in about a second."""
    return {"policy": guesser, "steps": 2, "problems": 4, "group_size": 2, "updates_per_batch": 2}
