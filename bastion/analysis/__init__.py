"""From records to numbers. numpy only; no decoding, no drawing."""

from bastion.analysis.acceptance import (SurrogatePairs, acceptance_histogram, depth_limit_share,
                                         drafter_depth, surrogate_pairs)
from bastion.analysis.budget import (Hindsight, SpeedByNodes, fixed_seconds, hindsight_nodes,
                                     speed_by_nodes, surrogate_by_nodes)
from bastion.analysis.latency_error import LatencyTable, latency_table
from bastion.analysis.spans import TextSpan, TokenOrigin, spans_of, text_spans, token_origins
from bastion.analysis.speed import Progress, estimated_plain_speed, progress, speedup
from bastion.records.totals import (acceptance_lengths, decode_steps, output_ids, seconds_decode,
                                    seconds_prefill, tau, tokens_per_second)

__all__ = [
    "Hindsight", "LatencyTable", "Progress", "SpeedByNodes", "SurrogatePairs", "TextSpan",
    "TokenOrigin", "acceptance_histogram", "acceptance_lengths", "decode_steps",
    "depth_limit_share", "drafter_depth", "estimated_plain_speed", "fixed_seconds",
    "hindsight_nodes", "latency_table", "output_ids", "progress", "seconds_decode",
    "seconds_prefill", "spans_of", "speed_by_nodes", "speedup", "surrogate_by_nodes",
    "surrogate_pairs", "tau", "text_spans", "token_origins", "tokens_per_second",
]
