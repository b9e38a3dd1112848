"""Learns to balance a pole from what others did, better than they did it.

    python examples/offline_control.py            # Flow-Attention, three seeds
    python examples/offline_control.py --flash    # FLASH in its place
    python examples/offline_control.py --publish  # and saves the figures
    python examples/offline_control.py --steps 2  # a smoke run

Episodes of mixed quality are collected from CartPole (gymnasium): a simple controller
that at a rate of its own in each episode acts at random. The model learns which action
followed which return still to come; at play it is asked for a high one, and continues
from a state of constant size. The model is of the paper's size; the run is shorter than
the paper's, which takes 100,000 steps of batch 64 on harder tasks. Needs gymnasium.
examples/README.md has the numbers to expect.
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import artefacts
import gymnasium
import keras
import numpy as np

from keras_flash import FlowformerDecisionModel

TASK, MAX_STEPS = "CartPole-v1", 200
EPISODES = 400  # that are learnt from
CONTEXT = 20  # steps that the model sees, as in the paper
TARGET, LOW = float(MAX_STEPS), 40.0  # returns that are asked for
STEPS, BATCH_SIZE = 200, 32
LEARNING_RATE, WARM_UP, WEIGHT_DECAY, CLIP = 1e-3, 100, 1e-4, 0.25
SEEDS, PLAYED = (0, 1, 2), 20  # episodes a seed


def controller(observation):
    """Pushes to where the pole falls."""
    return int(observation[2] + 0.5 * observation[3] > 0)


def collect(seed, count):
    """Episodes as dicts of states, actions and returns to go."""
    generator = np.random.default_rng(seed)
    task = gymnasium.make(TASK, max_episode_steps=MAX_STEPS)
    episodes = []
    for _ in range(count):
        observation, _ = task.reset(seed=int(generator.integers(2**31)))
        random_rate = generator.uniform(0.3, 1.0)
        states, actions, rewards, over = [], [], [], False
        while not over:
            action = controller(observation)
            if generator.random() < random_rate:
                action = int(generator.integers(2))
            states.append(observation)
            actions.append(action)
            observation, reward, ended, cut, _ = task.step(action)
            rewards.append(reward)
            over = ended or cut
        episodes.append(
            dict(
                states=np.array(states, "float32"),
                actions=np.array(actions, "int32"),
                returns=np.cumsum(rewards[::-1])[::-1].astype("float32") / MAX_STEPS,
            )
        )
    return episodes


def windows(episodes, count, seed):
    """Pieces of CONTEXT steps, from anywhere; each step is as likely to start one."""
    generator = np.random.default_rng(seed)
    lengths = np.array([len(episode["actions"]) for episode in episodes])
    x = dict(
        returns=np.zeros((count, CONTEXT), "float32"),
        states=np.zeros((count, CONTEXT, episodes[0]["states"].shape[1]), "float32"),
        actions=np.zeros((count, CONTEXT), "int32"),
        timesteps=np.zeros((count, CONTEXT), "int32"),
        padding_mask=np.zeros((count, CONTEXT), "int32"),
    )
    chosen = generator.choice(len(episodes), count, p=lengths / lengths.sum())
    for row, number in enumerate(chosen):
        start = int(generator.integers(lengths[number]))
        part = slice(start, start + CONTEXT)
        size = min(CONTEXT, lengths[number] - start)
        for name, values in episodes[number].items():
            x[name][row, :size] = values[part]
        x["timesteps"][row, :size] = np.arange(start, start + size)
        x["padding_mask"][row, :size] = 1
    return x


def play(model, target, seed, count):
    """Returns of episodes that are played side by side, each state streamed.

    Every CONTEXT steps the state starts anew: the model has seen no longer pieces.
    """
    tasks = [gymnasium.make(TASK, max_episode_steps=MAX_STEPS) for _ in range(count)]
    observations = np.array(
        [task.reset(seed=10_000 * (seed + 1) + i)[0] for i, task in enumerate(tasks)]
    )
    returns, playing = np.zeros(count), np.ones(count, bool)
    for step in range(MAX_STEPS):
        if step % CONTEXT == 0:
            state, actions = model.get_initial_state(count), None
        wanted = np.maximum(target - returns, 0.0) / MAX_STEPS
        steps = np.full(count, step)
        logits, state = model.act(wanted, observations, steps, state, actions)
        actions = keras.ops.convert_to_numpy(keras.ops.argmax(logits, axis=-1))
        for i in np.flatnonzero(playing):
            observations[i], reward, ended, cut, _ = tasks[i].step(int(actions[i]))
            returns[i] += reward
            playing[i] = not (ended or cut)
        if not playing.any():
            break
    return returns


def train(episodes, attention, seed, steps):
    keras.utils.set_random_seed(seed)
    model = FlowformerDecisionModel(
        state_dim=episodes[0]["states"].shape[1],
        num_actions=2,
        max_timesteps=MAX_STEPS,
        attention=attention,
    )
    rate = keras.optimizers.schedules.PolynomialDecay(
        LEARNING_RATE / WARM_UP, WARM_UP, LEARNING_RATE
    )
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=WEIGHT_DECAY, global_clipnorm=CLIP),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x = windows(episodes, steps * BATCH_SIZE, seed)
    model.fit(
        x,
        x["actions"],
        sample_weight=x["padding_mask"].astype("float32"),
        batch_size=BATCH_SIZE,
        verbose=0,
    )
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flash", action="store_true", help="FLASH as the attention")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    arguments = parser.parse_args()
    whole = arguments.steps == STEPS
    if arguments.publish and not whole:
        parser.error(f"--publish is for the full {STEPS} steps")
    attention = "mixed_chunk_attention" if arguments.flash else "flow_attention"
    data, played, low, start = [], [], [], time.perf_counter()
    seeds = SEEDS if whole else SEEDS[:1]
    for seed in seeds:
        episodes = collect(seed, EPISODES if whole else 10)
        lengths = [len(episode["actions"]) for episode in episodes]
        data += lengths
        model = train(episodes, attention, seed, arguments.steps)
        returns = play(model, TARGET, seed, PLAYED if whole else 2)
        played += list(returns)
        low += list(play(model, LOW, seed, PLAYED if whole else 2))
        print(
            f"seed {seed}: the data's mean return {np.mean(lengths):.1f}, played "
            f"{returns.mean():.1f}",
            flush=True,
        )
    minutes = (time.perf_counter() - start) / 60 / len(seeds)
    error = np.std(played, ddof=1) / np.sqrt(len(played))
    numbers = ", ".join(str(seed) for seed in seeds)
    expected = (
        f"asked for {TARGET:.0f}, plays {np.mean(played):.1f} +- {error:.1f} (standard "
        f"error of {len(played)} episodes, seeds {numbers}), asked for {LOW:.0f} "
        f"{np.mean(low):.1f}; the data's mean return is {np.mean(data):.1f}, the best "
        f"{np.max(data):.0f} ({artefacts.machine()}, {minutes:.1f} minutes a seed)"
    )
    print(expected)
    if arguments.publish:
        artefacts.write_figures(
            f"offline_control.py{' --flash' if arguments.flash else ''}",
            f"asked for {TARGET:.0f} {np.mean(played):.1f} +- {error:.1f}, asked for "
            f"{LOW:.0f} {np.mean(low):.1f}, the data's mean {np.mean(data):.1f} "
            f"({len(played)} episodes of three seeds)",
            expected,
        )


if __name__ == "__main__":
    main()
