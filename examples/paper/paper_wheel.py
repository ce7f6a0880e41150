"""The paper's figures for the wheel bandit, and what a run can lose."""

from __future__ import annotations

ROUNDS, GAIN = 16_000, 49.0
SEEDS = 25
PAPER = {  # final regret, mean and standard error over 25 seeds, as the paper has it
    "0.95": {
        ("neural-linear", ""): (30266.0, 6572.7),
        ("map", ""): (43298.9, 7146.9),
        ("subnet-diagonal", "100"): (47184.9, 7275.3),
        ("subnet-diagonal", "500"): (33796.4, 7464.6),
        ("last-k", "100"): (35340.1, 7576.7),
        ("last-k", "500"): (30556.2, 7942.9),
        ("gradient", "100"): (38177.4, 6904.8),
        ("gradient", "500"): (8211.9, 355.0),
        ("greedy", "100"): (21568.7, 5895.4),
        ("greedy", "500"): (8616.7, 574.5),
    },
    "0.9": {
        ("neural-linear", ""): (26745.9, 13956.9),
        ("map", ""): (50082.2, 19103.3),
        ("subnet-diagonal", "100"): (60640.0, 20071.5),
        ("subnet-diagonal", "500"): (48953.1, 21940.2),
        ("last-k", "100"): (38473.7, 16114.2),
        ("last-k", "500"): (32131.9, 17366.6),
        ("gradient", "100"): (20747.6, 12895.4),
        ("gradient", "500"): (7654.6, 430.0),
        ("greedy", "100"): (27527.0, 13802.1),
        ("greedy", "500"): (7732.3, 383.1),
    },
}


def quadrant(delta: str) -> float:
    """What an agent loses that never finds out about one of the four outer arms, in the mean."""
    return ROUNDS * (1 - float(delta) ** 2) * GAIN / 4
