"""The key table of DESIGN section 4, read a second time: who shares whose noise.

It is read by the identity of episodes, without paths and streams. A `label` says whose noise a draw
has; two draws must share their key exactly where label and slot agree. Worlds that are put to it
note their draws (`draws`: label and slot, and key) and their `episodes`.
"""

from twinstats.episodes import DIFFERENT, FRESH, KEEP, RESAMPLE, SHARED, Fork

A, B = (97, 46), (98, 98, 46)
KINDS = [
    *({"luck": luck, "alternative": k} for luck in (SHARED, FRESH) for k in range(3)),
    *({"luck": luck, "action": KEEP} for luck in (SHARED, FRESH, 1)),
    *({"luck": luck, "action": A} for luck in (SHARED, FRESH, 2)),
    {"luck": 1},
    {"luck": 2},
    {"luck": FRESH, "action": B},
    {"luck": FRESH, "action": A, "alternative": 1},
]


def later_luck(episode):
    """Whose noise drives an episode after its fork turn: "the parent's keys" means going up."""
    while episode.fork is not None and episode.fork.luck is SHARED:
        episode = episode.fork.episode
    fork = episode.fork
    has_its_own = fork is None or fork.luck is FRESH
    return (episode,) if has_its_own else (fork.episode, f"draw {fork.luck}")


def decision_label(episode, turn):
    """Whose noise decided a turn; null where the fork names the action."""
    fork = episode.fork
    if fork is None or turn > fork.turn:
        return ("decision", *later_luck(episode))
    if turn < fork.turn:
        return decision_label(fork.episode, turn)
    if fork.action not in (RESAMPLE, DIFFERENT):
        return None
    named = f"alternative {fork.alternative}"
    if fork.luck not in (SHARED, FRESH):
        named = f"draw {fork.luck}"
    return ("decision", fork.episode, named)


def environment_label(episode, turn):
    """Whose noise the environment's step after a turn's action drew from."""
    while episode.fork is not None and turn < episode.fork.turn:
        episode = episode.fork.episode
    return ("environment", *later_luck(episode))


def factual_of(episode):
    return episode if episode.fork is None else factual_of(episode.fork.episode)


def assert_shared_exactly_by_label(draws):
    """One key a label and one label a key: for every pair, same key if and only if same label."""
    keys, labels = {}, {}
    for label, key in draws:
        assert keys.setdefault(label, key) == key, label
        assert labels.setdefault(key, label) == label, key
    return list(labels)


def nested_forks(episodes, kinds, turns):
    """Forks of every kind at some of each episode's turns, its own fork turn the first."""
    return [
        Fork(episode, turn, **kind, skip_equal=False if number % 4 else None)
        for episode in episodes
        for turn in range(episode.num_turns)
        if turn - (episode.fork.turn if episode.fork else 0) in turns
        for number, kind in enumerate(kinds)
    ]


def play_nested(played, tasks, kinds, turns=(0, 1)):
    """Factuals of two steps, and forks to depth 3, of every kind under every other."""
    factuals = [*played.play(tasks, 2, 4), *played.play(tasks[:1], 1, 5)]
    first = played.fork(nested_forks(factuals, kinds, turns))
    second = played.fork(nested_forks(first[: 2 * len(kinds)], kinds[::2], turns))
    chosen = [e for e in second if e.fork.alternative != 2][:: max(1, len(second) // 24)]
    played.fork(nested_forks(chosen, kinds[1::2], turns))
    return played
