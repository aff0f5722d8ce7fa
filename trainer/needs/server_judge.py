"""A chat server as the judge: what it is asked, and how its reply is read.

Leaves out the server (`chat`) and what becomes of its proposals (`segments`).
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from trainer.needs.chat import ChatServer, Message
from trainer.needs.segments import PROGRESS, REGRESS, Segment, Verdict
from trainer.policy import Policy
from twinstats.episodes import Episode

TASK = (
    "You judge an agent's episode: numbered turns, each with what the agent was shown and what it "
    "wrote, then the reward. Name the segments of consecutive turns that clearly brought it nearer "
    "to its aim (progress) or further away (regress); leave out turns that did neither. Reply with "
    'JSON alone: {"segments": [{"begin": 0, "end": 1, "sign": "progress"}]}, end included.'
)
SIGNS = {"progress": PROGRESS, "regress": REGRESS}
_NAMED = re.compile(r'"segments"\s*:\s*')
_PLACES = 100  # looked at in a reply, however long


class ServerJudge:
    """A chat server that sees a whole episode and answers with segments.

    Cost: a request an episode. What it says cannot be repeated, and neither can a run with it.
    """

    def __init__(self, server: ChatServer, policy: Policy) -> None:
        self._server, self._policy = server, policy

    def __call__(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """A verdict for each scored episode.

        Raises:
            UsageError: The server cannot be reached, or refuses key, address or model.
        """
        replies = self._server.ask([conversation(self._policy, one) for one in episodes])
        return [
            Verdict([], reply.reason) if reply.text is None else read(reply.text, one.num_turns)
            for reply, one in zip(replies, episodes, strict=True)
        ]


def conversation(policy: Policy, episode: Episode) -> list[Message]:
    """What the judge is asked about an episode."""
    told = [
        f"Turn {index}\nShown: {turn.state}\nWritten: {policy.decode(turn.action)}"
        for index, turn in enumerate(episode.turns)
    ]
    told.append(f"Reward: {episode.outcome:.3f}")
    return [
        {"role": "system", "content": TASK},
        {"role": "user", "content": "\n\n".join(told)},
    ]


def read(text: str, num_turns: int) -> Verdict:
    """The segments in a reply, whatever stands around them; a reason where it is of no use.

    One wrong segment makes the whole reply useless, and so do more segments than turns.
    """
    proposed = next(_proposals(text), None)
    if proposed is None:
        return Verdict([], "the judge's reply holds no segments")
    segments = [_segment(one, num_turns) for one in proposed]
    known = [one for one in segments if one is not None]
    if len(known) < len(segments) or len(set(known)) > num_turns:
        return Verdict([], f"the judge's segments do not fit {num_turns} turns")
    return Verdict(sorted(set(known)))


def _proposals(text: str) -> Iterator[list[Any]]:
    """The lists under the name `segments` in a text, in order."""
    decoder = json.JSONDecoder()
    for named in islice(_NAMED.finditer(text), _PLACES):
        try:
            found, _ = decoder.raw_decode(text, named.end())
        except (ValueError, RecursionError):  # no JSON here, or brackets without end
            continue
        if isinstance(found, list):
            yield found


def _segment(proposed: Any, num_turns: int) -> Segment | None:
    """A proposed segment; null where it is none of this episode."""
    if not isinstance(proposed, dict) or proposed.get("sign") not in list(SIGNS):
        return None
    begin, end = proposed.get("begin"), proposed.get("end")
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < num_turns:
        return None
    return begin, end, SIGNS[proposed["sign"]]
