"""Which judge proposes segments: the policy, or the server that the configuration names."""

from trainer.config import NeedsConfig
from trainer.needs.chat import ChatServer
from trainer.needs.policy_judge import PolicyJudge
from trainer.needs.provider import Setup
from trainer.needs.segments import Segments
from trainer.needs.server_judge import ServerJudge
from twinstats.errors import UsageError


def segments(setup: Setup) -> Segments:
    """The provider of `segments`, with the judge of the configuration.

    Raises:
        UsageError: A server that `judge_server` refuses.
    """
    server = judge_server(setup.config.needs)
    return Segments(PolicyJudge(setup) if server is None else ServerJudge(server, setup.policy))


def judge_server(needs: NeedsConfig) -> ChatServer | None:
    """The server that judges, which has answered; null where the policy does.

    Raises:
        UsageError: Its model has no name, it cannot be reached, or it refuses the key.
    """
    if needs.judge == "policy":
        return None
    if not needs.judge_model:
        raise UsageError(f"`needs.judge_model` must name the model that {needs.judge} serves.")
    server = ChatServer(needs.judge, model=needs.judge_model, seconds=needs.judge_seconds)
    server.refuse_unreachable()
    return server
