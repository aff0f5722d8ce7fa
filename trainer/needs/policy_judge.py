"""The policy as the judge of its own episodes, by the probability of yes against no.

Leaves out what becomes of its proposals (`segments`).
"""

from collections.abc import Sequence

from trainer.needs.provider import Setup
from trainer.needs.segments import PROGRESS, REGRESS, Verdict, runs
from trainer.policy.passes import Passage, logprobs
from twinstats.episodes import Episode

QUESTION = "\nReward of the episode: {outcome:.2f}. Did the last turn help? Answer yes or no: "
ANSWERS = ("yes", "no")


class PolicyJudge:
    """Asks the policy after each turn whether that turn helped: the log-odds of yes against no.

    The log-odds of the same question without any history are taken off, as a model likes one of
    the words better. A turn that moves them by more than `needs.judge_nats` is proposed, and
    neighbours of one sign are one segment. Of a prompt longer than the model's context the
    beginning is left out. Cost: two passes over the history a turn; nothing is sampled.

    Source: Zhao et al. 2021, arXiv 2102.09690 (contextual calibration).
    """

    def __init__(self, setup: Setup) -> None:
        self._policy, config = setup.policy, setup.config
        self._length, self._threshold = config.model.max_length, config.needs.judge_nats

    def __call__(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """A verdict for each scored episode, always of use."""
        prompts = [prompt for episode in episodes for prompt in self._prompts(episode)]
        odds = iter(self.log_odds(prompts))
        verdicts = []
        for episode in episodes:
            usual = next(odds)
            moved = [next(odds) - usual for _ in episode.turns]
            verdicts.append(Verdict(runs([self._sign(shift) for shift in moved])))
        return verdicts

    def log_odds(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """The log P(yes) - log P(no) after each prompt, nats."""
        words = [self._policy.encode(word) for word in ANSWERS]
        passages = [self._passage(prompt, word) for prompt in prompts for word in words]
        found = [own.sum() for own in logprobs(self._policy, passages, temperature=1.0)]
        return [float(yes - no) for yes, no in zip(found[::2], found[1::2], strict=True)]

    def _prompts(self, episode: Episode) -> list[list[int]]:
        """The question alone, then after each turn of the episode."""
        question = self._policy.encode(QUESTION.format(outcome=episode.outcome))
        history: list[int] = []
        prompts = [question]
        for turn in episode.turns:
            history += [*turn.info["shown"], *turn.action]
            prompts.append(history + question)
        return prompts

    def _passage(self, prompt: Sequence[int], word: Sequence[int]) -> Passage:
        kept = list(prompt)[-(self._length - len(word)) :]
        return Passage([*kept, *word], range(len(kept), len(kept) + len(word)))

    def _sign(self, moved: float) -> int:
        if abs(moved) <= self._threshold:
            return 0
        return PROGRESS if moved > 0 else REGRESS
