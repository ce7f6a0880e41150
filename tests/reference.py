"""The paper's formulas, dense and literal, in float64: the oracle that every fast answer is compared with.

Imports nothing from the package. Ω is formed as a p × p matrix, gradients by one autograd call a row and output.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch


def flat_parameters(model):
    return [q for q in model.parameters() if q.requires_grad]


def call(model, inputs, i):
    """Outputs (C,) of row i for one tensor, a dict or a tuple of tensors."""
    if isinstance(inputs, dict):
        out = model({name: t[i : i + 1] for name, t in inputs.items()})
    elif isinstance(inputs, tuple):
        out = model(tuple(t[i : i + 1] for t in inputs))
    else:
        out = model(inputs[i : i + 1])
    return out.reshape(-1)


def jacobian(model, inputs, n):
    """(f (n, C), J (n, C, p)) by plain autograd, a row and an output at a time."""
    parameters = flat_parameters(model)
    f_rows, J_rows = [], []
    for i in range(n):
        f = call(model, inputs, i)
        J = []
        for c in range(len(f)):
            gradients = torch.autograd.grad(f[c], parameters, retain_graph=True, allow_unused=True)
            J.append(
                torch.cat(
                    [
                        (torch.zeros_like(q) if g is None else g).reshape(-1)
                        for g, q in zip(gradients, parameters, strict=True)
                    ]
                )
            )
        f_rows.append(f.detach())
        J_rows.append(torch.stack(J).detach())
    return torch.stack(f_rows).double(), torch.stack(J_rows).double()


def output_hessian(task, f, sigma2):
    """H (n, C, C) of the negative log-likelihood in f; expected over y for means and log-variances."""
    n, C = f.shape
    if task == "mean-and-log-variance":
        variance = own_noise(f)
        return torch.stack([torch.diag(torch.tensor([*(1 / r), *(0.5 for _ in r)])) for r in variance]).double()
    if task == "regression":
        return torch.eye(C).double().expand(n, C, C) / sigma2
    if task == "binary":
        q = torch.sigmoid(f)
        return (q * (1 - q)).reshape(n, 1, 1)
    q = torch.softmax(f, 1)
    return torch.stack([torch.diag(r) - torch.outer(r, r) + 1e-6 * torch.eye(C) for r in q]).double()


def own_noise(f):
    """Noise variances (n, T) of a network whose outputs are T means, then T log-variances."""
    T = f.shape[1] // 2
    return torch.stack([torch.exp(f[:, T + t]) for t in range(T)], 1)


def precision(J, H, v):
    """Ω = Σ JₙᵀHₙJₙ + V (p, p)."""
    return torch.einsum("ncp,ncq->pq", J, torch.einsum("ncd,ndq->ncq", H, J)) + torch.diag(v)


def data_term(J, H):
    return precision(J, H, torch.zeros(J.shape[2]).double())


def subnet_variance(J_test, omega, S):
    """PV(S) = g_Sᵀ Ω_SS⁻¹ g_S (m, C)."""
    inverse = torch.linalg.inv(omega[S][:, S])
    g = J_test[:, :, S]
    return torch.einsum("mcj,jl,mcl->mc", g, inverse, g)


def ipv(J, H, v, S, sigma2):
    """(σ₀²/N)(|S| − tr(Ω_SS⁻¹ V_SS)); σ₀² = 1 for classification."""
    omega = precision(J, H, v)
    inverse = torch.linalg.inv(omega[S][:, S])
    return sigma2 / len(J) * (len(S) - float((inverse.diagonal() * v[S]).sum()))


def significant(x):
    """Twelve significant digits, through decimal text."""
    return np.array([float(f"{value:.11e}") for value in np.asarray(x, dtype=np.float64)])


def subnet_covariance(J_test, omega, S):
    """G_S Ω_SS⁻¹ G_Sᵀ of each row (M, C, C)."""
    g = J_test[:, :, S]
    return torch.einsum("mcp,pq,mdq->mcd", g, torch.linalg.inv(omega[S][:, S]), g)


def gradient_selection(score, v, k):
    keys = significant(score / v)
    return sorted(range(len(keys)), key=lambda j: (-keys[j], j))[:k]


def subnet_diagonal_selection(omega, k):
    keys = significant(omega.diagonal())
    return sorted(range(len(keys)), key=lambda j: (keys[j], j))[:k]


def greedy_selection(omega, v, k, pool=None):
    """Algorithm 2, literally: largest diagonal entry, then the Schur complement of the rest."""
    remaining = sorted(range(len(v))) if pool is None else sorted(pool)
    current = omega[remaining][:, remaining].clone()
    chosen = []
    for _ in range(k):
        keys = significant(current.diagonal() / v[remaining])
        s = int(np.argmax(keys))
        chosen.append(remaining[s])
        keep = [i for i in range(len(remaining)) if i != s]
        column = current[keep, s]
        current = current[keep][:, keep] - torch.outer(column, column) / current[s, s]
        remaining = [remaining[i] for i in keep]
    return chosen


def greedy_selection_by_rows(A, v, k):
    """Algorithm 2 for many columns of few weighted rows A (n, p): d_j/v_j = 1 + a_jᵀ(I + A_S A_Sᵀ)⁻¹a_j each time.

    The same Schur complement by Woodbury, with a_j scaled by v_j^(−½), so that Ω (p, p) need not exist.
    """
    A = A / v.sqrt()
    chosen = []
    for _ in range(k):
        A_S = A[:, chosen]
        M = torch.linalg.inv(torch.eye(len(A)).double() + A_S @ A_S.T)
        keys = significant(1 + (A * (M @ A)).sum(0))
        keys[chosen] = -1.0
        chosen.append(int(np.argmax(keys)))
    return chosen


def variance_selection(J_reference, omega, k):
    """At each step the parameter with the largest sum of predictive variances over the reference rows, tried out."""
    chosen, gains, before = [], [], 0.0
    for _ in range(k):
        totals = torch.full((len(omega),), -1.0, dtype=torch.float64)
        for j in set(range(len(omega))) - set(chosen):
            totals[j] = subnet_variance(J_reference, omega, torch.tensor([*chosen, j])).sum()
        best = int(totals.argmax())
        gains.append(float(totals[best]) - before)
        before = float(totals[best])
        chosen.append(best)
    return torch.tensor(chosen), torch.tensor(gains, dtype=torch.float64)


def closeness(std_full, std, sigma2):
    """W2 between Gaussians of one mean, a row at a time; se by row with ddof 1."""
    per_row = [float((a - b).abs().mean()) for a, b in zip(std_full, std, strict=True)]
    mean = sum(per_row) / len(per_row)
    spread = math.sqrt(sum((x - mean) ** 2 for x in per_row) / (len(per_row) - 1))
    found = {"w2": mean, "w2_se": spread / math.sqrt(len(per_row)), "w2_relative": mean / float(std_full.mean())}
    found["rank"] = rank_correlation(std_full, std)
    if sigma2 is not None:
        found["w2_total"] = float(((std_full**2 + sigma2).sqrt() - (std**2 + sigma2).sqrt()).abs().mean())
    return found


def rank_correlation(std_full, std):
    """Spearman, output by output: a rank is the number of smaller values and half of the equal ones; or None."""
    found = []
    for full, own in zip(std_full.T, std.T, strict=True):
        ranks = [
            torch.tensor([float((x < y).sum() + 0.5 * (x == y).sum()) for y in x], dtype=torch.float64)
            for x in (full, own)
        ]
        if any(len(set(values.tolist())) == 1 for values in ranks):
            return None
        found.append(float(torch.corrcoef(torch.stack(ranks))[0, 1]))
    return sum(found) / len(found)


def aurc(uncertainty, risk):
    """Mean over i of the expected risk of the i most certain rows, those that tie in random order."""
    levels = sorted(set(significant(uncertainty)))
    groups = [[float(r) for u, r in zip(significant(uncertainty), risk, strict=True) if u == level] for level in levels]
    risks = []
    for i in range(1, len(risk) + 1):
        kept, total = 0, 0.0
        for group in groups:
            some = min(len(group), i - kept)
            kept, total = kept + some, total + some * sum(group) / len(group)
        risks.append(total / i)
    return sum(risks) / len(risks)


def ence(error, std, bins=10):
    """Mean |RMV − RMSE|/RMV over bins of equally many (error, std); equal values of std stay together."""
    error, std, found = error.flatten().tolist(), std.flatten().tolist(), {}
    keys = significant(std)
    for e, s, key in zip(error, std, keys, strict=True):
        rank = (keys < key).sum() + 0.5 * (keys == key).sum()
        found.setdefault(int(rank * bins / len(keys)), []).append((e, s))
    value = 0.0
    for own in found.values():
        rmse, rmv = (math.sqrt(sum(x[i] ** 2 for x in own) / len(own)) for i in (0, 1))
        value += len(own) / len(keys) * abs(rmv - rmse) / rmv
    return value


def smooth_ece_at(confidence, correct, bandwidth, points=4001):
    """∫ |mean of (y − p) K(t, p)| dt over 0 to 1, K a Gaussian that is reflected at both ends, by its images."""
    t = np.linspace(0, 1, points)
    r = np.zeros(points)
    for p, y in zip(np.asarray(confidence), np.asarray(correct), strict=True):
        for image in range(-8, 9, 2):  # of the reflections at 0 and 1
            for centre in (image + p, image - p):
                r += (y - p) * np.exp(-0.5 * ((t - centre) / bandwidth) ** 2)
    r /= len(confidence) * bandwidth * math.sqrt(2 * math.pi)
    return float(np.trapezoid(np.abs(r), t))


def smooth_ece(confidence, correct):
    """The bandwidth that is its own smooth calibration error."""
    low, high = 1e-3, 1.0
    for _ in range(34):
        middle = (low + high) / 2
        larger = smooth_ece_at(confidence, correct, middle) > middle
        low, high = (middle, high) if larger else (low, middle)
    return low


def selective_metrics(uncertainty, risk):
    """Of rows with one number each."""
    return {"aurc": aurc(uncertainty, risk), "error_rank": rank_correlation(risk[:, None], uncertainty[:, None])}


def regression_metrics(y, f, std, sigma2):
    total = torch.sqrt(std**2 + sigma2)
    normal = torch.distributions.Normal(f, total)
    z = (y - f) / total
    phi = torch.exp(torch.distributions.Normal(0.0, 1.0).log_prob(z))
    Phi = torch.distributions.Normal(0.0, 1.0).cdf(z)
    crps = total * (z * (2 * Phi - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    return {
        "nll": float(-normal.log_prob(y).mean()),
        "rmse": float(((y - f) ** 2).mean().sqrt()),
        "crps": float(crps.mean()),
        "coverage95_total": float(((y - f).abs() <= 1.96 * total).double().mean()),
        "ence": ence(y - f, total),
        **selective_metrics(total.mean(1), ((y - f) ** 2).mean(1)),
    }


def expected_sigmoid(f, std):
    """E sigmoid(f + std·z) by a sum over a fine grid of z."""
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-0.5 * z**2)
    x = np.clip(f + std * z, -700, 700)
    return float((weight / (1 + np.exp(-x))).sum() / weight.sum())


def expected_binary_entropy(f, std):
    """E H(sigmoid(f + std·z)) over the same grid."""
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-0.5 * z**2)
    x = np.abs(f + std * z)
    entropy = np.log1p(np.exp(-x)) + x / (1 + np.exp(np.minimum(x, 700)))
    return float((weight * entropy).sum() / weight.sum())


def softmax_draws(f, covariance):
    """softmax of one row at 1,024 scrambled Sobol points, in the differences to the largest logit (points, C)."""
    f, covariance = np.asarray(f), np.asarray(covariance)
    order = np.argsort(-f, kind="stable")
    contrast = np.zeros((len(f) - 1, len(f)))
    for row, other in enumerate(order[1:]):
        contrast[row, other], contrast[row, order[0]] = 1.0, -1.0
    mean, spread = contrast @ f, contrast @ covariance @ contrast.T
    uniform = torch.quasirandom.SobolEngine(len(mean), scramble=True, seed=0).draw(1024, dtype=torch.float64)
    z = torch.special.ndtri(uniform).numpy()
    factor = (
        np.linalg.cholesky(spread + 1e-12 * spread.diagonal().max() * np.eye(len(mean))) if spread.any() else spread
    )
    p = np.zeros((len(z), len(f)))
    for own, point in zip(p, z, strict=True):
        x = np.concatenate([[0.0], mean + factor @ point])
        power = np.exp(x - x.max())
        own[order] = power / power.sum()
    return p


def class_probabilities(task, f, covariance):
    if task == "binary":
        q = [expected_sigmoid(float(m), float(c) ** 0.5) for m, c in zip(f, covariance, strict=True)]
        return torch.tensor([[1 - one, one] for one in q], dtype=torch.float64)
    return torch.tensor(np.array([softmax_draws(m, c).mean(0) for m, c in zip(f, covariance, strict=True)]))


def classification_metrics(task, y, f, covariance):
    p = class_probabilities(task, f, covariance)
    n = len(y)
    truth = torch.zeros_like(p)
    truth[range(n), y] = 1.0
    top, guess = p.max(1)
    ece = 0.0
    for b in range(15):
        inside = (top > b / 15) & (top <= (b + 1) / 15)
        if inside.any():
            hit = (guess[inside] == y[inside]).double().mean()
            ece += float(inside.double().mean() * (hit - top[inside].mean()).abs())
    brier, correct = (p - truth) ** 2, (guess == y).double()
    return {
        "nll": float(-torch.log(p[range(n), y]).mean()),
        "accuracy": float(correct.mean()),
        "brier": float((brier[:, 1] if task == "binary" else brier.sum(1)).mean()),
        "ece": ece,
        "smooth_ece": smooth_ece(top, correct),
        "signed_ece": float((top - correct).mean()),
        **selective_metrics(1 - top, 1 - correct),
    }


def conformal_quantile(scores, level):
    """The smallest of the scores that at least (n + 1)·level of them do not exceed, by counting; none: infinity."""
    enough = Fraction(str(level)) * (len(scores) + 1)
    reached = [s for s in scores if sum(other <= s for other in scores) >= enough]
    return min(reached, default=math.inf)


def conformal_intervals(f, total, y, f_new, total_new, level):
    """(quantiles (T,), lower, upper (M, T)) from held-out rows with their targets, one target at a time."""
    quantiles = [
        conformal_quantile([abs(float(y[i, t] - f[i, t])) / float(total[i, t]) for i in range(len(f))], level)
        for t in range(f.shape[1])
    ]
    half = torch.stack([quantiles[t] * total_new[:, t] for t in range(f.shape[1])], 1)
    return quantiles, f_new - half, f_new + half


def ranked_classes(p):
    """Classes of one row from the most to the least probable; of equal ones the lower number first."""
    return sorted(range(len(p)), key=lambda c: (-float(p[c]), c))


def adaptive_score(p, c):
    """Probability of the classes that rank higher than c in one row."""
    ranked, exact = ranked_classes(p), [Fraction(float(own)) for own in p]
    return sum(exact[other] for other in ranked[: ranked.index(c)]) / sum(exact)


def conformal_sets(p, y, p_new, level, by_class=False):
    """(quantiles, a set of classes for each new row); by class: a quantile for each, from its own rows."""
    scores = [adaptive_score(p[i], int(y[i])) for i in range(len(p))]
    if by_class:
        own = [[s for s, label in zip(scores, y, strict=True) if int(label) == c] for c in range(p.shape[1])]
        quantiles = [conformal_quantile(some, level) for some in own]
    else:
        quantiles = [conformal_quantile(scores, level)] * p.shape[1]
    return quantiles, [{c for c in range(len(row)) if adaptive_score(row, c) <= quantiles[c]} for row in p_new]
