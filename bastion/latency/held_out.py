"""Which probed points a fit may not see, and how far off a prediction is there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bastion.errors import UserError
from bastion.latency.estimators import Estimator
from bastion.latency.fit import Record


def hold_out(records: Iterable[Record]) -> np.ndarray:
    """bool [R]: about a third of the probed points, spread over both axes like a diagonal pattern.

    All repeats of a point go the same way. The least and the most nodes stay in the fit, so that
    held-out points lie between fitted ones: a roofline is asked to predict within what was probed.
    """
    table = np.array([tuple(record)[:2] for record in records], dtype=np.int64).reshape(-1, 2)
    if not len(table):
        return np.zeros(0, dtype=bool)
    sizes, row = np.unique(table[:, 0], return_inverse=True)
    _, column = np.unique(table[:, 1], return_inverse=True)
    inside = (row > 0) & (row < len(sizes) - 1)
    return inside & ((row + column) % 3 == 1)


def held_out_rmse(
    estimator: Estimator, records: Iterable[Record], held_out: np.ndarray | None = None
) -> float:
    """Root mean square error in seconds, over the held-out records (all without a mask).

    Each record counts once, repeats included. Raises UserError when nothing is held out.
    """
    table = np.array([tuple(record) for record in records], dtype=np.float64).reshape(-1, 3)
    if held_out is not None:
        table = table[np.asarray(held_out, dtype=bool)]
    if not len(table):
        raise UserError("No probe was held out from the fit: probe at least three sizes.")
    nodes, context = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    errors = np.asarray(estimator.seconds(nodes, context)) - table[:, 2]
    return float(np.sqrt(np.square(errors).mean()))
