"""Fitting the roofline's four parameters to measured verify times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from bastion.errors import UserError
from bastion.latency.peaks import DevicePeaks
from bastion.latency.roofline import CalibratedRoofline, raw_roofline
from bastion.latency.shape import ModelShape

Record = tuple[int, int, float]
"""(nodes, context, measured verify seconds)."""


@dataclass(frozen=True, slots=True)
class _Points:
    """One row per probed point: ideal branch times, measured seconds, weight of its residual."""

    memory: np.ndarray
    compute: np.ndarray
    seconds: np.ndarray
    weights: np.ndarray

    def branches(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return params[0] * self.memory + params[1], params[2] * self.compute + params[3]

    def residuals(self, params: np.ndarray) -> np.ndarray:
        return self.weights * (np.maximum(*self.branches(params)) - self.seconds)


def fit_calibration(
    shape: ModelShape,
    peaks: DevicePeaks,
    records: Iterable[Record],
    sigma_scale: float = 30.0,
    bytes_per_value: int = 2,
    robust: bool = False,
) -> CalibratedRoofline:
    """Least squares over alpha_m, beta_m, alpha_c, beta_c, all at least 0 (BASTION, cost_model.py).

    Repeats of a (nodes, context) point are averaged. A residual is divided by sigma, which grows
    with the nodes from 1 to 1 + sigma_scale and is scaled to a mean of 1, so a larger sigma_scale
    trusts small trees more. Parameters that are never negative keep the prediction from falling as
    nodes are added. Alpha and beta trade off where the weights dominate the bytes: compare
    predictions, not parameters. Raises UserError on fewer than 4 points or impossible values.

    robust: for noisy machines (a CPU that others use too). Repeats count by their median, residuals
    are relative, and points that stand out (Huber, scale from the median residual) lose weight;
    sigma_scale is not used.
    """
    nodes, context, seconds = _points(records, np.median if robust else np.mean)
    ideal = raw_roofline(shape, peaks, bytes_per_value)
    points = _Points(
        memory=np.asarray(ideal.memory_seconds(nodes, context), dtype=np.float64),
        compute=np.asarray(ideal.compute_seconds(nodes, context), dtype=np.float64),
        seconds=seconds,
        weights=1.0 / (seconds if robust else sigma_weights(nodes, sigma_scale)),
    )
    params = _best_fit(points)
    if robust:
        params = _reweighted(points, params)
    alpha_m, beta_m, alpha_c, beta_c = (float(value) for value in params)
    return replace(ideal, alpha_m=alpha_m, beta_m=beta_m, alpha_c=alpha_c, beta_c=beta_c)


def sigma_weights(nodes: np.ndarray, sigma_scale: float) -> np.ndarray:
    """float64 [P] sigmas with mean 1, rising linearly from the least to the most nodes."""
    nodes = np.asarray(nodes, dtype=np.float64)
    span = nodes.max() - nodes.min()
    sigma = 1.0 + sigma_scale * (nodes - nodes.min()) / (span or 1.0)
    return sigma / sigma.mean()


def _points(
    records: Iterable[Record], middle: Callable[[np.ndarray], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct points in order of first appearance, their repeats reduced by `middle`."""
    table = np.array([tuple(record) for record in records], dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 3:
        raise UserError("Give probe records as (nodes, context, seconds).")
    if not (np.isfinite(table).all() and (table[:, 0] >= 1).all() and (table[:, 1] >= 0).all()):
        raise UserError("Probe records need nodes >= 1, context >= 0 and finite seconds.")
    if not (table[:, 2] > 0).all():
        raise UserError("Probe records need seconds greater than 0: measure again.")
    groups: dict[tuple[int, int], list[float]] = {}
    for nodes, context, seconds in table.tolist():
        groups.setdefault((int(nodes), int(context)), []).append(seconds)
    if len(groups) < 4:
        raise UserError(
            f"Four parameters need at least 4 different (nodes, context) points, not {len(groups)}: "
            "probe more."
        )
    keys = np.array(list(groups), dtype=np.int64)
    return keys[:, 0], keys[:, 1], np.array([float(middle(np.array(v))) for v in groups.values()])


def _best_fit(points: _Points) -> np.ndarray:
    """The best of many starts, each a guess of which points the compute branch decides.

    Once every point has its branch the fit is two non-negative linear ones. The true borders lie
    along the ratio of the two ideal times, so each cut along that ratio is a start.
    """
    order = np.argsort(points.compute / points.memory, kind="stable")
    cuts = np.unique(np.linspace(0, len(order), num=min(len(order), 24) + 1).astype(int))
    found = []
    for cut in cuts:
        computes = np.zeros(len(order), dtype=bool)
        computes[order[cut:]] = True
        found.append(_alternate(points, computes))
    found.sort(key=lambda params: _cost(points, params))
    refined = [_polish(points, params) for params in found[:3]]
    return min(refined + found[:1], key=lambda params: _cost(points, params))


def _alternate(points: _Points, computes: np.ndarray, rounds: int = 20) -> np.ndarray:
    """Fit each branch to its points, give each point to the greater branch, until nothing moves."""
    best = None
    for _ in range(rounds):
        params = _fit_branches(points, computes)
        if best is None or _cost(points, params) < _cost(points, best):
            best = params
        memory, compute = points.branches(params)
        if np.array_equal(compute > memory, computes):
            break
        computes = compute > memory
    return best


def _fit_branches(points: _Points, computes: np.ndarray) -> np.ndarray:
    """The four parameters for given branches; one without points stays just below the other."""
    from scipy.optimize import nnls  # on use: importing it takes longer than reading a calibration

    params = np.zeros(4)
    for mine, start, ideal in ((~computes, 0, points.memory), (computes, 2, points.compute)):
        if mine.any():
            weights = points.weights[mine]
            design = np.stack([ideal[mine], np.ones(mine.sum())], axis=1) * weights[:, None]
            # Columns of like size: ideal times are milliseconds, the offset's column is ones.
            scale = np.linalg.norm(design, axis=0)
            solution, _ = nnls(design / scale, points.seconds[mine] * weights)
            params[start : start + 2] = solution / scale
    if not computes.any():
        params[2] = min(1.0, float((points.branches(params)[0] / points.compute).min()))
    if computes.all():
        params[0] = min(1.0, float((points.branches(params)[1] / points.memory).min()))
    return params


def _polish(points: _Points, params: np.ndarray) -> np.ndarray:
    """A bounded descent on the true objective, where a point may change its branch on the way."""
    from scipy.optimize import least_squares

    # In milliseconds, or whatever the times' size is, all four parameters are of order 1.
    unit = points.seconds.mean()
    scale = np.array([1.0, unit, 1.0, unit])

    def jacobian(scaled: np.ndarray) -> np.ndarray:
        memory, compute = points.branches(scaled * scale)
        ones = np.ones(len(memory))
        columns = np.stack([points.memory, ones, points.compute, ones], axis=1)
        decides = np.stack([compute <= memory] * 2 + [compute > memory] * 2, axis=1)
        return points.weights[:, None] * columns * decides * scale / unit

    result = least_squares(
        lambda scaled: points.residuals(scaled * scale) / unit,
        params / scale,
        jac=jacobian,
        bounds=(0.0, np.inf),
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=200,
    )
    return result.x * scale


def _reweighted(points: _Points, params: np.ndarray, rounds: int = 8) -> np.ndarray:
    """Huber's estimate: points further out than 1.345 robust deviations lose weight.

    Residuals are taken relative to the prediction: relative to the measurement, a few lucky fast
    probes would outweigh many slow ones.
    """
    for _ in range(rounds):
        predicted = np.maximum(*points.branches(params))
        relative = np.abs(points.seconds / predicted - 1.0)
        spread = max(1.4826 * float(np.median(relative)), 1e-9)
        trust = np.minimum(1.0, 1.345 * spread / np.maximum(relative, 1e-300))
        before, params = params, _best_fit(replace(points, weights=np.sqrt(trust) / predicted))
        if np.allclose(np.maximum(*points.branches(params)), np.maximum(*points.branches(before)), rtol=1e-3):
            break
    return params


def _cost(points: _Points, params: np.ndarray) -> float:
    return float(np.square(points.residuals(params)).sum())
