"""A world whose turns are several sampled tokens: what keying by turn buys, with known truth.

A turn ends with the stop token or at a limit; what it means (`tokens_model`) pays and moves the
state. All tokens are drawn over the whole vocabulary with keyed noise. The setting's `keying` says
what names the noise. What each keying costs besides coupling:

- "slot": nothing. Every method's claim holds.
- "position", "generator": every episode has the policy's law, so fresh forks and numbered draws
  are as good as ever. But where a twin's resampled turn is shorter than the factual's, its tail
  meets the very noise that chose the factual's decision: credit from shared luck is biased.
- "collide": every episode has the policy's law and twins are unbiased, but episodes that share a
  key repeat each other: baselines from the group are biased, standard errors too small.

Leaves out tables and exact laws (`tokens_model`), playing (`tokens_play`) and drawing turns
(`tokens_voice`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulations.worlds import tokens_model
from simulations.worlds.forks import players
from simulations.worlds.tabular import TabularWorld
from simulations.worlds.tabular_model import log_softmax
from simulations.worlds.tabular_needs import Labels, Quality
from simulations.worlds.tokens_model import STOP, TokensModel, TokensSetting, build_model, turn_law
from simulations.worlds.tokens_play import Batch, Player
from simulations.worlds.tokens_voice import Speech, Voice, padded, unpadded
from twinstats.episodes import DIFFERENT, KEEP, Episode, Fork, Task, Turn
from twinstats.keys import FACTUAL, Stream, Streams, fork_streams
from twinstats.maximal import check_coupling, maximal_stream
from twinstats.noise import KeyColumns


class Tokens:
    """The world of a `TokensSetting`. A step is played by one call of `play`.

    Actions are tuples of token ids, the stop token included. `truth`, `places`, `policy_table` and
    `policy_gradient` are those of the tabular world whose actions are meanings: a turn's advantage
    depends on nothing else. `class_gradient` is the gradient in the policy's own logits.
    """

    def __init__(
        self, setting: TokensSetting, *, seed: int, model: TokensModel | None = None
    ) -> None:
        """`model`: other tables than those that the setting names."""
        self.setting = setting
        self.seed = seed
        self.model: TokensModel = replace(model or build_model(setting), setting=setting)
        self.law = turn_law(self.model)
        self.turns_world = TabularWorld(
            tokens_model.tables(self.model, self.law),
            seed=seed,
            labels=_labels(setting),
            quality=Quality(critic=setting.critic, teacher=setting.teacher, judge=setting.judge),
            tokens=setting.limit,
        )
        self.values = self.turns_world.values
        self._voice = Voice(self.model)
        self._player = Player(self.model, self.turns_world.tables, self.law, self._voice)
        self._rewards = self.turns_world.tables.reward.reshape(-1)
        self._shape = self.turns_world.tables.move.shape

    def tasks(self, number: int) -> list[Task]:
        """Tasks that start in the states in turn."""
        return self.turns_world.tasks(number)

    def play(self, tasks: Sequence[Task], rollouts: int, step: int) -> list[Episode]:
        """Episodes of each task, rows in order; every call of a step starts at row 0."""
        played = [task for task in tasks for _ in range(rollouts)]
        rows = np.arange(len(played))
        batch = Batch(
            start=np.zeros(len(played), np.int64),
            state=np.array([task.info.get("start", 0) for task in played], np.int64),
            first=np.full((len(played), self.setting.limit), -1),
            before=np.zeros((2, len(played)), np.int64),
            tail=self._grid(FACTUAL.tail, step, rows),
            environment=self._grid(FACTUAL.environment, step, rows),
        )
        return [
            self._episode(played[row], step, row, (turns, index), None, _count(turns))
            for row, (turns, index) in enumerate(self._player.play(batch))
        ]

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """The forked episodes, in the order asked; each has its parent's turns before its own.

        Twins that said the same share their tail, as in `TabularWorld.fork`.

        Raises:
            ValueError: An action that is no turn, or a fork that would share the luck of a
                maximal twin by the Gumbel coupling, which did not draw it.
        """
        check_coupling(forks)
        streams = [fork_streams(fork) for fork in forks]
        first = self._decisions(forks, streams)
        said = unpadded(first)
        skips = [
            fork.takes_equal_tail() and own == fork.episode.turns[fork.turn].action
            for fork, own in zip(forks, said, strict=True)
        ]
        player = players(forks, said, skips)
        played = [place for place, skip in enumerate(skips) if not skip and player[place] == place]
        batch = self._batch(
            [forks[place] for place in played], [streams[place] for place in played], first[played]
        )
        walks = dict(zip(played, self._player.play(batch), strict=True))
        return [
            self._equal(fork)
            if skips[place]
            else self._forked(fork, *walks[player[place]], is_played=player[place] == place)
            for place, fork in enumerate(forks)
        ]

    def provide(self, need: str, episodes: Sequence[Episode]) -> None:
        """Fills a need of each episode (`tabular_needs`), by what its turns mean.

        `first_entropy` is that of a turn's first token over the vocabulary's; `teacher_gap` spreads
        a turn's log-ratio evenly over its tokens.

        Raises:
            UsageError: A need that this world does not have.
        """
        self.turns_world.provide(need, episodes)
        for episode in episodes:
            if need in ("first_entropy", "hindsight_logprob", "teacher_gap"):
                episode.info[need] = self._by_token(need, episode)

    def truth(self, episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Exact (Q, V, advantage) of each turn, rewards already earned included."""
        return self.turns_world.truth(episode)

    def places(self, episode: Episode) -> np.ndarray:
        """Turn, state and meaning of each turn: an array with three rows."""
        return self.turns_world.places(episode)

    def policy_table(self) -> np.ndarray:
        """Probability of each meaning (turn, state, meaning)."""
        return self.turns_world.policy_table()

    def policy_gradient(self, tasks: Sequence[Task]) -> np.ndarray:
        """Exact gradient of the tasks' mean expected outcome in the logits of meanings."""
        return self.turns_world.policy_gradient(tasks)

    def class_gradient(self, tasks: Sequence[Task]) -> np.ndarray:
        """The same in the policy's class logits (turn, state, previous class, class)."""
        starts = [int(task.info.get("start", 0)) for task in tasks]
        occupancy = self.values.occupancy[starts].mean(axis=0)
        return tokens_model.class_gradient(self.model, self.law, self.values, occupancy)

    def class_scores(self, episode: Episode, weight: np.ndarray) -> np.ndarray:
        """Sum over turns of weight * grad log pi(turn), in the class logits."""
        policy = np.exp(log_softmax(self.model.logits))
        turn, state, _ = self.places(episode)
        classes = self._voice.classes(self._tokens_of(episode))
        scores, previous = np.zeros(policy.shape), np.zeros_like(turn)
        for drawn in classes.T:
            is_token = drawn >= 0
            context = turn[is_token], state[is_token], previous[is_token]
            own = weight[is_token]
            np.add.at(scores, (*context, drawn[is_token]), own)
            np.add.at(scores, context, -own[:, None] * policy[context])
            previous = drawn
        return scores

    def _grid(self, stream: Stream, step: int, rows: np.ndarray) -> KeyColumns:
        keyed = self._keyed_rows(rows)
        return KeyColumns.grid(self.seed, step, stream.purpose, row=keyed, turn=0, luck=stream.luck)

    def _keys(self, forks: Sequence[Fork], streams: Sequence[Stream]) -> KeyColumns:
        """The key of each fork's stream at slot 0."""
        rows = self._keyed_rows(np.array([fork.episode.row for fork in forks], np.int64))
        names = [(stream, f.episode.step) for stream, f in zip(streams, forks, strict=True)]
        number = {name: index for index, name in enumerate(dict.fromkeys(names))}
        distinct = KeyColumns.of([stream.key(self.seed, step, 0, 0) for stream, step in number])
        found = distinct.take(np.array([number[name] for name in names], np.int64))
        return KeyColumns(found.words, found.turn_luck, rows.astype(np.uint64))

    def _keyed_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows // self.setting.colliding if self.setting.keying == "collide" else rows

    def _decisions(self, forks: Sequence[Fork], streams: Sequence[Streams]) -> np.ndarray:
        """What is said in each fork's turn (fork, position). DIFFERENT is exact."""
        first = padded([self._parent_action(fork) for fork in forks], self.setting.limit)
        drawn = [place for place, fork in enumerate(forks) if fork.is_drawn]
        if not drawn:
            return first
        own = [forks[place] for place in drawn]
        decisions = [streams[place].decision for place in drawn]
        turn, state = _turns(own), self._states(own)
        before = self._before(own)
        before[0] += self.model.shown[state]
        keys = self._keys(own, [stream for stream in decisions if stream is not None])
        named, start = self._player.named(keys, turn, before)
        differs = np.array([fork.action is DIFFERENT for fork in own])
        other = np.where(differs[:, None], first[drawn], -1) if differs.any() else None
        speech = Speech(turn=turn, state=state, keys=named, start=start, other=other)
        first[drawn] = self._voice.draw(speech)
        return first

    def _parent_action(self, fork: Fork) -> tuple[int, ...]:
        """The parent's turn, or the one that the fork names."""
        if fork.is_drawn or fork.action is KEEP:
            return tuple(fork.episode.turns[fork.turn].action)
        return self._checked_action(fork.action)

    def _checked_action(self, action: Any) -> tuple[int, ...]:
        limit, last = self.setting.limit, self.setting.vocabulary - 1
        ids = tuple(int(token) for token in action)
        inside = all(0 <= token <= last for token in ids) and 1 <= len(ids) <= limit
        if not inside or STOP in ids[:-1] or (ids[-1] != STOP and len(ids) < limit):
            raise ValueError(
                f"`action` must be a turn: 1 to {limit} ids in 0..{last} that end at the first "
                f"{STOP} or at the limit, got {ids}."
            )
        return ids

    def _states(self, forks: Sequence[Fork]) -> np.ndarray:
        taken = np.array([fork.episode.info["index"][fork.turn] for fork in forks], np.int64)
        return np.unravel_index(taken, self._shape)[1]

    def _before(self, forks: Sequence[Fork]) -> np.ndarray:
        """Tokens before each fork's turn: shown, and sampled. Its own observation is not in."""
        found = np.zeros((2, len(forks)), np.int64)
        for column, fork in enumerate(forks):
            states = np.unravel_index(fork.episode.info["index"][: fork.turn], self._shape)[1]
            found[0, column] = self.model.shown[states].sum()
            found[1, column] = _count(fork.episode.turns[: fork.turn])
        return found

    def _batch(self, forks: Sequence[Fork], streams: Sequence[Streams], first: np.ndarray) -> Batch:
        return Batch(
            start=_turns(forks),
            state=self._states(forks),
            first=first,
            before=self._before(forks),
            tail=self._keys(forks, [stream.tail for stream in streams]),
            environment=self._keys(forks, [stream.environment for stream in streams]),
            draft=self._drafts(forks),
        )

    def _drafts(self, forks: Sequence[Fork]) -> tuple[np.ndarray, np.ndarray, KeyColumns] | None:
        """The parents' turns after the fork, for the forks that are coupled maximally."""
        coupled = [place for place, fork in enumerate(forks) if fork.is_maximal]
        if not coupled:
            return None
        shape = len(forks), self._shape[0]
        tokens, state = np.full((*shape, self.setting.limit), -1), np.zeros(shape, np.int64)
        for place in coupled:
            fork = forks[place]
            later = slice(fork.turn + 1, fork.episode.num_turns)
            tokens[place, later] = self._tokens_of(fork.episode)[later]
            state[place, later] = self.places(fork.episode)[1][later]
        return tokens, state, self._keys(forks, [maximal_stream(fork) for fork in forks])

    def _tokens_of(self, episode: Episode) -> np.ndarray:
        return padded([turn.action for turn in episode.turns], self.setting.limit)

    def _forked(
        self, fork: Fork, own: list[Turn], index: np.ndarray, *, is_played: bool
    ) -> Episode:
        parent = fork.episode
        turns = [*parent.turns[: fork.turn], *own]
        places = np.append(parent.info["index"][: fork.turn], index)
        paid = own[0 if fork.is_drawn else 1 : None if is_played else 1]
        cost = _count(paid)
        return self._episode(parent.task, parent.step, parent.row, (turns, places), fork, cost)

    def _equal(self, fork: Fork) -> Episode:
        """A fork whose decision came out equal: its parent's turns and outcome, not played."""
        parent = fork.episode
        played = list(parent.turns), parent.info["index"]
        cost = parent.turns[fork.turn].num_tokens * fork.is_drawn
        return self._episode(parent.task, parent.step, parent.row, played, fork, cost)

    def _episode(
        self,
        task: Task,
        step: int,
        row: int,
        played: tuple[list[Turn], np.ndarray],
        fork: Fork | None,
        cost: int,
    ) -> Episode:
        turns, index = played
        goal = self.turns_world.tables.goal
        outcome = float(self._rewards[index].sum())
        after = self.turns_world.tables.move.reshape(-1)[index[-1]]
        return Episode(
            task=task,
            step=step,
            row=row,
            turns=turns,
            outcome=outcome,
            terminated=True,
            truncated=False,
            success=None if goal is None else outcome == goal,
            final_state=(len(turns), int(after)),
            fork=fork,
            sampled=cost,
            info={"index": index},
        )

    def _by_token(self, need: str, episode: Episode) -> Any:
        """What the tabular world said of a turn's meaning, for its tokens."""
        turn, state, meaning = self.places(episode)
        lengths = episode.column("num_tokens")
        if need == "first_entropy":
            return self.law.first_entropy[turn, state] / np.log(self.setting.vocabulary)
        found = episode.info[need]
        if need == "teacher_gap":
            limit = self.setting.limit
            return [
                own[:length] * limit / length for own, length in zip(found, lengths, strict=True)
            ]
        gained = found - np.log(self.policy_table()[turn, state, meaning])
        return (episode.column("logprob") + gained) / lengths


def _labels(setting: TokensSetting) -> Labels:
    return Labels(
        world="tokens",
        shown=lambda turn, state: (turn, state),
        state_class=[str(state) for state in range(setting.states)],
        actions=[f"meaning {meaning}" for meaning in range(setting.modes)],
        states={"features": np.eye(setting.states)},
    )


def _turns(forks: Sequence[Fork]) -> np.ndarray:
    return np.array([fork.turn for fork in forks], np.int64)


def _count(turns: Sequence[Turn]) -> int:
    return sum(turn.num_tokens for turn in turns)
