"""What verifying a tree costs: FLOPs and bytes, device peaks, roofline, calibration. numpy and scipy.

The measuring itself needs torch and lives in `bastion.decoding`.
"""

from bastion.latency.calibration import (
    Calibration,
    calibration_path,
    find_calibration,
    make_calibration,
)
from bastion.latency.catalogue import StoredCalibrations, made, moment, newest_first, stored_calibrations
from bastion.latency.crossover import Crossover, crossover
from bastion.latency.estimators import ESTIMATORS, Estimator, OnlineEstimator, build_estimator, check_estimator
from bastion.latency.fit import Record, fit_calibration, sigma_weights
from bastion.latency.grid import ProbeGrid, standard_grid
from bastion.latency.held_out import held_out_rmse, hold_out
from bastion.latency.peaks import PUBLISHED_PEAKS, DevicePeaks, published_peaks
from bastion.latency.profiles import find_profile, shipped_profiles, shipped_words
from bastion.latency.roofline import CalibratedRoofline, raw_roofline
from bastion.latency.shape import ModelShape

__all__ = [
    "ESTIMATORS",
    "PUBLISHED_PEAKS",
    "CalibratedRoofline",
    "Calibration",
    "Crossover",
    "DevicePeaks",
    "Estimator",
    "ModelShape",
    "OnlineEstimator",
    "ProbeGrid",
    "Record",
    "StoredCalibrations",
    "build_estimator",
    "calibration_path",
    "check_estimator",
    "crossover",
    "find_calibration",
    "find_profile",
    "fit_calibration",
    "held_out_rmse",
    "hold_out",
    "made",
    "make_calibration",
    "moment",
    "newest_first",
    "published_peaks",
    "raw_roofline",
    "shipped_profiles",
    "shipped_words",
    "sigma_weights",
    "standard_grid",
    "stored_calibrations",
]
