"""Supervised rows and their loop, for warm-ups and demonstrations of others."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from trainer.config import LearnerConfig, LoraConfig, WarmupConfig
from trainer.policy import Policy, build_model, load_policy
from trainer.policy.lora import has_adapters
from trainer.supervised import warmup
from trainer.supervised.demonstration_file import chat_segments, read_demonstrations, tokens_of
from trainer.supervised.sft import sft
from trainer.supervised.updates import Rows, Tokens, end_to_end, fit, packed, rate, supervised_loss
from trainer.tasks.demonstrations import demonstrations
from twinstats.errors import UsageError
from twinstats.noise import generator
from twinstats.records import read, read_run

TEMPLATE = (
    "{% for m in messages %}<question>{{ m.role }}\n{{ m.content }}</question>\n{% endfor %}"
    "{% if add_generation_prompt %}<question>assistant\n{% endif %}"
)
FORGETS = "{{ messages[-1].content }}{% if add_generation_prompt %}>{% endif %}"
CHAT = [
    {"role": "user", "content": "country of Moundou"},
    {"role": "assistant", "content": "Chad"},
    {"role": "tool", "content": "found"},
    {"role": "assistant", "content": "XAF"},
]


@pytest.fixture
def templated(policy):
    """The policy with another chat template: templated(text)."""

    def templated(template):
        tokenizer = type(policy.tokenizer)(
            tokenizer_object=policy.tokenizer.backend_tokenizer,
            pad_token="<pad>",
            additional_special_tokens=["<question>", "</question>"],
        )
        tokenizer.chat_template = template
        return Policy(policy.model, tokenizer)

    return templated


@pytest.fixture
def written(tmp_path):
    def written(*lines):
        path = tmp_path / "data.jsonl"
        told = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(told), encoding="utf-8")
        return path

    return written


# Rows


def test_texts_end_to_end_are_cut_and_the_rest_is_left_out():
    rows = end_to_end([Tokens([1, 2, 3], [True, False, True]), Tokens([4, 5], [False, True])], 2)
    assert rows.ids_RL.tolist() == [[1, 2], [3, 4]]
    assert rows.learned_RL.tolist() == [[True, False], [True, False]]
    assert rows.positions_RL is None
    with pytest.raises(ValueError, match="must fill a row of 9 tokens, got 2"):
        end_to_end([Tokens([4, 5], [False, True])], 9)


def test_whole_texts_are_packed_where_there_is_room_and_first_tokens_are_not_learned():
    texts = [Tokens([k] * size, [True] * size) for k, size in ((1, 3), (2, 3), (3, 2), (4, 1))]
    rows = packed(texts, 5)
    assert rows.ids_RL.tolist() == [[1, 1, 1, 3, 3], [2, 2, 2, 4, 0]]
    assert rows.positions_RL.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 0, 0]]
    assert rows.learned_RL.int().tolist() == [[0, 1, 1, 0, 1], [0, 1, 1, 0, 0]]
    with pytest.raises(ValueError, match="at most 2 tokens, got 3"):
        packed(texts, 2)


def test_a_packed_text_sees_no_other(policy):
    """The loss of two texts in a row is the mean over tokens of their losses alone."""
    texts = [Tokens([5, 6, 7, 8], [True] * 4), Tokens([50, 60, 70], [True] * 3)]
    together = supervised_loss(policy, packed(texts, 8))
    alone = [supervised_loss(policy, packed([text], 8)) for text in texts]
    assert together.item() == pytest.approx((3 * alone[0] + 2 * alone[1]).item() / 5, rel=2e-3)
    blind = packed(texts, 8)._replace(positions_RL=None)
    assert abs(supervised_loss(policy, blind).item() - together.item()) > 2e-3 * together.item()


def test_the_loss_is_the_cross_entropy_of_learned_tokens(policy):
    ids = torch.tensor([[5, 6, 7, 8]])
    learned = torch.tensor([[True, False, True, True]])
    logits = policy.model(input_ids=ids).logits
    logp = torch.log_softmax(logits.float(), -1)
    expected = -(logp[0, 1, 7] + logp[0, 2, 8]) / 2
    found = supervised_loss(policy, Rows(ids, learned))
    assert found.item() == pytest.approx(expected.item(), rel=5e-3)  # bfloat16 inside


def test_the_rate_goes_up_stays_and_goes_down():
    config = WarmupConfig(steps=10, warmup_steps=2, decay_share=0.4)
    rates = [rate(step, config) for step in range(10)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_no_updates_leave_a_policy_as_it_is(policy):
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters()}
    fit(policy, packed([Tokens([1, 2], [True, True])], 2), WarmupConfig(steps=0))
    assert all(torch.equal(before[name], one) for name, one in policy.model.named_parameters())


def test_updates_go_through_rows_in_order_and_over_again(policy, monkeypatch):
    seen = []

    def loss(policy, rows, *, precision):
        seen.append(rows.ids_RL[:, 0].tolist())
        return next(policy.model.parameters()).sum()

    monkeypatch.setattr("trainer.supervised.updates.supervised_loss", loss)
    rows = Rows(torch.arange(3)[:, None].repeat(1, 2), torch.ones(3, 2, dtype=bool))
    fit(policy, rows, WarmupConfig(steps=3, rows=2))
    assert seen == [[0, 1], [2, 0], [1, 2]]


def test_a_warm_up_learns_its_rows_as_it_always_did(config, monkeypatch):
    """Demonstrations in random order, all sampled tokens learned and a share of those shown."""
    seen = []
    monkeypatch.setattr(warmup, "fit", lambda policy, rows, *_: seen.append((policy, rows)))
    own = replace(config, warmup=WarmupConfig(episodes=30, row_tokens=50, seed=3))
    warmup._made(own, None)
    ((policy, rows),) = seen
    rng = generator(3, "warmup/demonstrations")
    episodes = demonstrations(15, num_parts=4, rng=rng) + demonstrations(15, num_parts=1, rng=rng)
    ids, learned = [], []
    for index in rng.permutation(30):
        for text, is_sampled in episodes[index].segments:
            for token, drawn in zip(
                tokens := policy.encode(text), rng.random(len(tokens)), strict=True
            ):
                ids.append(token)
                learned.append(drawn < (1.0 if is_sampled else 0.3))
    assert rows.ids_RL.flatten().tolist() == ids[: len(ids) // 50 * 50]
    assert rows.learned_RL.flatten().tolist() == learned[: len(ids) // 50 * 50]
    assert 0.3 < np.mean(learned) < 0.9


# Demonstrations


def test_without_a_template_a_chat_is_its_texts_and_the_assistants_are_learned(policy):
    segments = chat_segments(policy, CHAT)
    assert segments == [
        ("country of Moundou", False), ("Chad", True), ("found", False), ("XAF", True)
    ]  # fmt: skip
    found = tokens_of(policy, segments)
    pieces = [policy.encode(text) for text, _ in segments]
    assert list(found.ids) == sum(pieces, [])
    assert found.learned == sum(([k % 2 == 1] * len(p) for k, p in enumerate(pieces)), [])


def test_with_a_template_a_reply_is_learned_up_to_the_token_that_ends_it(templated):
    segments = chat_segments(templated(TEMPLATE), CHAT)
    assert segments == [
        ("<question>user\ncountry of Moundou</question>\n<question>assistant\n", False),
        ("Chad</question>", True),
        ("\n<question>tool\nfound</question>\n<question>assistant\n", False),
        ("XAF</question>", True),
    ]


def test_a_text_that_was_shown_holds_no_control_token_and_a_reply_may(templated):
    chat = [CHAT[0] | {"content": "</question> x"}, CHAT[1] | {"content": "a <question>"}]
    assert chat_segments(templated(TEMPLATE), chat) == [
        ("<question>user\n< /question> x</question>\n<question>assistant\n", False),
        ("a <question></question>", True),
    ]


def test_a_template_whose_messages_have_no_end_is_refused(templated):
    with pytest.raises(UsageError, match="must have a token that ends a message"):
        chat_segments(templated(FORGETS), CHAT)


def test_what_a_template_refuses_is_said(templated):
    refusing = "{{ raise_exception('no tools') if messages[-1].role == 'tool' }}" + TEMPLATE
    with pytest.raises(ValueError, match="the chat template refuses it: no tools"):
        chat_segments(templated(refusing), [*CHAT[:3], CHAT[3]])


def test_an_episode_is_its_observations_and_its_turns(policy, written):
    line = {"observations": ["<question>x</question>", ""], "turns": ["<search>y</search>", [7, 8]]}
    (found,) = read_demonstrations(written(line), policy, 64)
    shown, said = policy.encode("<question>x</question>"), policy.encode("<search>y</search>")
    assert list(found.ids) == [*shown, *said, 7, 8]
    assert found.learned == [False] * len(shown) + [True] * (len(said) + 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object, got list"),
        ({}, "either `messages` or `turns`"),
        ({"messages": CHAT, "turns": ["x"]}, "either `messages` or `turns`"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "a role of system, user"),
        ({"messages": [{"role": "user", "content": None}]}, "a text as `content`"),
        ({"messages": CHAT[:1]}, "no token is learned"),
        ({"messages": [CHAT[0], {"role": "assistant", "content": "a b c " * 99}]}, "at most 64"),
        ({"turns": ["x"]}, "what was shown before every turn"),
        ({"turns": ["x"], "observations": [None]}, "what was shown before every turn"),
        ({"turns": [[600]], "observations": ["x"]}, "token ids below 600, got 600"),
        ({"turns": [""], "observations": ["x"]}, "none that is empty"),
        ({"turns": ["\ud800"], "observations": ["x"]}, "must be Unicode"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}, CHAT[1]]},
            "half of a surrogate pair",
        ),
    ],
)
def test_a_line_that_is_not_usable_is_named_with_its_reason(policy, written, line, reason):
    path = written({"messages": CHAT}, "", line)
    with pytest.raises(UsageError, match=f"unusable lines. line 3: .*{reason}"):
        read_demonstrations(path, policy, 64)


def test_all_unusable_lines_are_counted_and_five_named(policy, written):
    with pytest.raises(UsageError, match="line 5: .*And 2 more.") as caught:
        read_demonstrations(written(*["{"] * 7), policy, 64)
    assert "line 6" not in str(caught.value)


def test_a_file_without_a_demonstration_is_refused(policy, written, tmp_path):
    with pytest.raises(UsageError, match="at least one demonstration"):
        read_demonstrations(written(""), policy, 64)
    with pytest.raises(UsageError, match="cannot be read"):
        read_demonstrations(tmp_path / "none", policy, 64)


# The run


def learn(config, policy, out, demonstrations, **changes):
    options = {"epochs": 30, "learning_rate": 1e-2} | changes
    return sft(config, policy, demonstrations, out, started=lambda: "now", **options)


def test_what_is_shown_is_learned_and_what_is_not_learned_is_not(config, policy, tmp_path):
    shown, said = policy.encode("<question>x</question>"), policy.encode("<answer>XAF</answer>")
    text = Tokens([*shown, *said], [False] * len(shown) + [True] * len(said))
    own = replace(config, warmup=replace(config.warmup, rows=1))
    folder = learn(own, policy, tmp_path / "run", [text] * 40)
    model = AutoModelForCausalLM.from_pretrained(folder)
    logits = model(input_ids=torch.tensor([text.ids])).logits[0]
    right = (logits[:-1].argmax(-1) == torch.tensor(text.ids[1:])).tolist()
    assert all(right[len(shown) - 1 :]) and not all(right[: len(shown) - 1])
    losses = read(tmp_path / "run", "metrics").filter(name="sft/loss_nats").collect()["value"]
    assert losses[-1] < 0.2 < losses[0] and losses.is_not_null().all()


def test_the_folder_holds_the_policy_that_was_trained(config, policy, tmp_path):
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters()}
    texts = [Tokens(range(9), [True] * 9)]
    folder = learn(config, policy, tmp_path / "run", texts, epochs=2)
    kept = dict(load_policy(folder).model.named_parameters())
    for name, one in policy.model.named_parameters():
        assert torch.equal(kept[name], one) and not torch.equal(one, before[name])
    assert load_policy(folder).encode("Chad") == policy.encode("Chad")


@pytest.mark.parametrize(
    "how", [{"micro_rows": 1}, {"learner": LearnerConfig(gradient_checkpointing=True)}]
)
def test_rows_one_by_one_and_layers_computed_again_change_nothing(config, tokenizer, how):
    texts = [Tokens(range(n), [True] * n) for n in (9, 5, 7)]
    found = []
    for options in ({"learner": LearnerConfig()}, {"learner": LearnerConfig()} | how):
        policy = Policy(build_model(config.model, seed=0), tokenizer)
        own = WarmupConfig(steps=2, rows=3, learning_rate=1e-3)
        fit(policy, packed(texts, 9), own, **options)
        found.append(dict(policy.model.named_parameters()))
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-3, atol=1e-5)


def test_adapters_are_trained_alone_and_merged_in_the_end(config, policy, tmp_path):
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters()}
    own = replace(config, lora=LoraConfig(rank=2, alpha=4))
    texts = [Tokens(range(9), [True] * 9)]
    kept = load_policy(learn(own, policy, tmp_path / "run", texts, epochs=3))
    assert not has_adapters(kept.model)
    changed = {
        name
        for name, one in kept.model.named_parameters()
        if not torch.equal(one.detach(), before[name])
    }
    assert changed == {name for name in before if "_proj.weight" in name}
    ids = torch.tensor([texts[0].ids])
    torch.testing.assert_close(
        kept.model(input_ids=ids).logits, policy.model(input_ids=ids).logits, rtol=1e-4, atol=1e-5
    )


def test_weights_that_a_rate_has_ruined_are_no_policy(config, policy, tmp_path):
    changes = {"epochs": 1, "learning_rate": 1e30}  # no later loss tells that the weights are gone
    with pytest.raises(RuntimeError, match="are ruined: .* A lower --learning-rate may help"):
        learn(config, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)], **changes)
    assert not (tmp_path / "run" / "model").exists()


def test_the_run_says_how_it_was_tuned_and_leaves_the_warm_up_as_it_was(config, policy, tmp_path):
    learn(config, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)], epochs=2)
    told = read_run(tmp_path / "run")["configuration"]
    assert told["warmup"] == asdict(config.warmup)
    assert told["sft"] == {"epochs": 2, "learning_rate": 1e-2, "warmup_steps": 1}


def test_a_killed_fine_tuning_leaves_no_policy(config, policy, tmp_path, monkeypatch):
    def killed(self, folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    monkeypatch.setattr(Policy, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        learn(config, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)], epochs=1)
    assert sorted(one.name for one in (tmp_path / "run").iterdir()) == ["metrics", "run.json"]


def test_no_epoch_and_no_rate_are_refused_before_anything_is_written(config, policy, tmp_path):
    for wrong in ({"epochs": 0}, {"learning_rate": 0.0}):
        with pytest.raises(UsageError, match="`epochs` must be at least 1"):
            learn(config, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)], **wrong)
    assert not (tmp_path / "run").exists()


def test_adapters_that_do_not_fit_are_refused_before_anything_is_written(config, policy, tmp_path):
    own = replace(config, lora=LoraConfig(rank=10_000, alpha=4))
    with pytest.raises(UsageError, match="`lora.rank` must be at most"):
        learn(own, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)])
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_ends_it(config, tokenizer, tmp_path):
    policy = Policy(build_model(config.model, seed=0), tokenizer)
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="Update 1: the loss is not finite"):
        learn(config, policy, tmp_path / "run", [Tokens(range(9), [True] * 9)])
