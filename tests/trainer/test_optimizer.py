"""The rate of an update: a function of the step and of the tokens used, and of nothing else."""

import dataclasses

import pytest
import torch
from transformers import get_scheduler

from trainer.config import LengthConfig, changed
from trainer.learning.optimizer import learning_rate, make_optimizer, trained_parameters
from trainer.setup import check
from twinstats.errors import UsageError

STEPS, WARMUP, RATE = 12, 4, 1e-3


def scheduled(config, schedule, *settings, warmup=WARMUP):
    own = dataclasses.replace(config, length=LengthConfig(steps=STEPS))
    fields = (f"optimizer.schedule={schedule}", f"optimizer.warmup_steps={warmup}")
    return changed(own, [*fields, *settings])


def rates(config, tokens_a_step=0):
    return [
        learning_rate(config, step=step, total_tokens=tokens_a_step * (step - 1))
        for step in range(1, STEPS + 1)
    ]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_after_the_warm_up_rates_are_those_of_the_librarys_schedules(config, schedule):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    theirs = get_scheduler(name, optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS)
    expected = []
    for _ in range(STEPS):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    found = rates(scheduled(config, schedule))
    assert found[WARMUP:] == pytest.approx(expected[WARMUP:], rel=1e-12)
    # theirs begin with an update at rate 0, ours with the first step up
    assert found[:WARMUP] == pytest.approx([*expected[1:WARMUP], RATE], rel=1e-12)


def test_rates_by_hand(config):
    assert rates(scheduled(config, "linear", warmup=0))[:3] == pytest.approx(
        [RATE, RATE * 11 / 12, RATE * 10 / 12]
    )
    assert rates(scheduled(config, "cosine"))[8] == pytest.approx(RATE / 2)  # 4 of 8 are over
    assert rates(scheduled(config, "constant", warmup=0)) == [RATE] * STEPS


def test_a_run_that_ends_by_tokens_is_as_far_as_the_tokens_are_used_up(config):
    own = scheduled(config, "linear", "length.total_tokens=1000")
    assert rates(own, 0) == rates(scheduled(config, "linear"))  # then the steps are ahead
    assert rates(own, 100)[4:8] == pytest.approx([RATE * (1 - x) for x in (0.4, 0.5, 0.6, 0.7)])
    assert rates(own, 100)[1] == pytest.approx(RATE * 2 / 4 * 0.9)  # two steps up, a tenth over
    assert learning_rate(own, step=9, total_tokens=1001) == 0


def test_a_warm_up_that_never_ends_is_refused(config):
    with pytest.raises(UsageError, match=r"`optimizer.warmup_steps` must be at most .* 12, got 13"):
        check(scheduled(config, "cosine", warmup=STEPS + 1))
    assert rates(scheduled(config, "cosine", warmup=STEPS))[-1] == RATE


def test_only_what_has_a_gradient_is_optimized(policy, config):
    assert list(trained_parameters(policy.model)) == [n for n, _ in policy.model.named_parameters()]
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    (group,) = make_optimizer(policy, config).param_groups
    assert len(group["params"]) == len(list(policy.model.parameters())) - 1
