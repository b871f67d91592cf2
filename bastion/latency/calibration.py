"""A device's calibration for one pair: what adaptive growth needs, kept as one JSON file."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bastion.errors import UserError
from bastion.home import calibrations_dir
from bastion.latency.estimators import Estimator, build_estimator
from bastion.latency.fit import Record, fit_calibration
from bastion.latency.held_out import held_out_rmse, hold_out
from bastion.latency.peaks import DevicePeaks
from bastion.latency.roofline import CalibratedRoofline, Count, raw_roofline
from bastion.latency.shape import ModelShape

SCHEMA_VERSION = 1
NOT_STORED = ("schema_version", "max_probed_nodes")
"""Not fields: the version, and what a run keeps beside the fields for readers that know only the summary."""
MAX_PROBES, MAX_COUNT = 10_000, 2**20
PeaksSource = Literal["measured", "published"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Latency of one (device, target, drafter, dtype, attention); all times in seconds.

    draft_seconds, other_seconds: what a step costs besides verifying. probes: (nodes, context,
    seconds) as measured, held_out the ones the fit did not see; raw_rmse and calibrated_rmse are
    the errors there, before and after the fit. buckets: tree sizes that forwards of fixed shapes are padded
    to, ascending, which is where the probes then are; () where a forward has the tree's own size.
    made_at: ISO 8601, UTC. shipped: a profile that came with this program (`bastion.latency.profiles`), measured elsewhere.
    """

    device_key: str
    target: str
    dtype: str
    attention: str
    peaks: DevicePeaks
    peaks_source: PeaksSource
    roofline: CalibratedRoofline
    draft_seconds: float
    other_seconds: float
    probes: list[Record]
    held_out: list[bool]
    raw_rmse: float
    calibrated_rmse: float
    drafter: str = ""
    device_name: str = ""
    made_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    buckets: tuple[int, ...] = ()
    shipped: bool = False

    def __post_init__(self) -> None:
        if len(self.probes) != len(self.held_out):
            raise UserError("A calibration needs one held-out mark per probe: calibrate again.")
        if self.peaks_source not in get_args(PeaksSource):
            raise UserError("Device peaks are either measured or published: calibrate again.")
        for name in ("device_key", "target", "dtype", "attention", "drafter", "device_name", "made_at"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"A calibration's {name} is a text: calibrate again.")
        if not isinstance(self.shipped, bool):
            raise UserError("Whether a calibration was shipped is yes or no: calibrate again.")
        if self.buckets and not (self.buckets[0] >= 1 and all(a < b for a, b in itertools.pairwise(self.buckets))):
            raise UserError("A calibration's buckets are ascending tree sizes of 1 or more: calibrate again.")
        for value in (self.draft_seconds, self.other_seconds, self.raw_rmse, self.calibrated_rmse):
            if not (math.isfinite(value) and value >= 0):
                raise UserError("A calibration's times must be numbers of 0 or more: calibrate again.")

    @property
    def shape(self) -> ModelShape:
        return self.roofline.shape

    @property
    def max_probed_nodes(self) -> int:
        """The largest tree that was timed; predictions beyond it are extrapolated."""
        return max((nodes for nodes, _, _ in self.probes), default=0)

    def verify_seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """Predicted seconds of one target forward over `nodes` tree nodes after `context` tokens."""
        return self.roofline.seconds(nodes, context)

    def estimator(self, name: str = "roofline") -> Estimator:
        """Another predictor for the same device, from the registry."""
        return build_estimator(name, self)

    @property
    def path(self) -> Path:
        """Where `save` puts it unless told otherwise."""
        return calibration_path(
            self.device_key, self.target, self.dtype, self.attention, self.drafter
        )

    @property
    def id(self) -> str:
        """Ten hexadecimal digits that name this measurement: a digest of all it holds."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:10]

    @property
    def contexts(self) -> list[int]:
        """The contexts that were probed, ascending."""
        return sorted({context for _, context, _ in self.probes})

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads, a few kB; what a file and a run's `run.json` hold."""
        content = asdict(self) | {"schema_version": SCHEMA_VERSION}
        # The roofline repeats its peaks: one copy on disk cannot disagree with itself.
        del content["roofline"]["peaks"]
        for name in ("buckets", "shipped"):
            if not content[name]:
                del content[name]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], name: str = "The calibration") -> Calibration:
        """What `to_json` gave. UserError that names it when it is damaged or of another schema."""
        if not isinstance(content, Mapping) or content.get("schema_version") != SCHEMA_VERSION:
            raise UserError(f"{name} has another schema: run `python -m bastion calibrate` again.")
        try:
            return _from_json({key: value for key, value in content.items() if key not in NOT_STORED})
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _damaged(name, error) from None

    def save(self, path: Path | None = None) -> Path:
        """Write JSON beside `path` and rename it there, so that no reader meets half a file."""
        path = path or self.path
        content = self.to_json()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what `save` wrote. UserError when it is missing, damaged or of another schema."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
        except FileNotFoundError:
            raise UserError(f"There is no calibration at {path}: run `python -m bastion calibrate`.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(f"The calibration {path}", error) from None
        return cls.from_json(content, f"The calibration {path}")


def make_calibration(
    *,
    shape: ModelShape,
    peaks: DevicePeaks,
    peaks_source: PeaksSource,
    probes: list[Record],
    bytes_per_value: int = 2,
    robust: bool = False,
    sigma_scale: float = 30.0,
    held_out: np.ndarray | None = None,
    **about: Any,
) -> Calibration:
    """Fit the probes that are not held out and score both rooflines on those that are.

    The stored roofline is the one that was scored. `about`: the other fields of Calibration.
    """
    held_out = hold_out(probes) if held_out is None else np.asarray(held_out, dtype=bool)
    seen = [probe for probe, out in zip(probes, held_out, strict=True) if not out]
    fitted = fit_calibration(shape, peaks, seen, sigma_scale, bytes_per_value, robust)
    raw = raw_roofline(shape, peaks, bytes_per_value)
    return Calibration(
        peaks=peaks,
        peaks_source=peaks_source,
        roofline=fitted,
        probes=[(int(n), int(c), float(s)) for n, c, s in probes],
        held_out=held_out.tolist(),
        raw_rmse=held_out_rmse(raw, probes, held_out),
        calibrated_rmse=held_out_rmse(fitted, probes, held_out),
        **about,
    )


def calibration_path(
    device_key: str, target: str, dtype: str, attention: str, drafter: str = ""
) -> Path:
    """A readable file name, with a digest so that two different keys never share a file."""
    parts = (device_key, target, drafter, dtype, attention)
    words = "-".join(filter(None, (re.sub(r"[^A-Za-z0-9.]+", "_", Path(p).name) for p in parts)))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    return calibrations_dir() / f"{words[:100]}-{digest}.json"


def find_calibration(
    device_key: str, target: str, dtype: str, attention: str, drafter: str = ""
) -> Calibration | None:
    """The stored calibration for these, or None. UserError when the file is damaged."""
    path = calibration_path(device_key, target, dtype, attention, drafter)
    return Calibration.load(path) if path.exists() else None


def _from_json(content: dict[str, Any]) -> Calibration:
    unknown = set(content) - {f.name for f in fields(Calibration)}
    if unknown:
        raise ValueError(f"unknown field {min(unknown)}")
    peaks = DevicePeaks(**content.pop("peaks"))
    if not isinstance(peaks.name, str):
        raise ValueError("the name of the device is no text")
    roofline = dict(content.pop("roofline"))
    roofline = CalibratedRoofline(ModelShape(**roofline.pop("shape")), peaks, **roofline)
    # Arithmetic is the check that every parameter is a number, and one that arrays can hold.
    with np.errstate(over="ignore", invalid="ignore"):
        predicted = roofline.seconds(np.array([1.0, MAX_COUNT]), np.array([0.0, MAX_COUNT]))
    if not (np.isfinite(predicted).all() and (predicted >= 0).all()):
        raise ValueError("the roofline predicts no number")
    if len(content["probes"]) > MAX_PROBES:
        raise ValueError("there are more probes than a calibration makes")
    content["probes"] = [(int(n), int(c), float(s)) for n, c, s in content["probes"]]
    for nodes, context, seconds in content["probes"]:
        if not (1 <= nodes <= MAX_COUNT and 0 <= context <= MAX_COUNT and math.isfinite(seconds) and seconds > 0):
            raise ValueError("a probe is out of range")
    content["buckets"] = tuple(int(size) for size in content.get("buckets", ()))
    content["held_out"] = [bool(mark) for mark in content["held_out"]]
    for name in ("draft_seconds", "other_seconds", "raw_rmse", "calibrated_rmse"):
        content[name] = float(content[name])
    return Calibration(peaks=peaks, roofline=roofline, **content)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _damaged(name: str, error: Exception) -> UserError:
    return UserError(f"{name} cannot be read ({error}): delete it and run `python -m bastion calibrate` again.")
