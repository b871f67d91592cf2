"""The doctor: why a pair's acceptance is low, by undoing one suspected fault at a time and measuring tau."""

from bastion.decoding.doctor.examine import Report, examine
from bastion.decoding.doctor.material import PROMPTS
from bastion.decoding.doctor.registry import checks_named
from bastion.decoding.doctor.report import report_json

__all__ = ["PROMPTS", "Report", "checks_named", "examine", "report_json"]
