"""The table of a benchmark laid out as the paper's: one line per method, speedup and tau per prompt set, and
the mean. As Markdown and LaTeX for people, as CSV and JSON for programs; the latter at full precision."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bastion.analysis.benchmark import MEAN, Difference, TableCell, cell_values
from bastion.analysis.benchmark_published import Published
from bastion.figures import numbers

_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|~$!"})
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
GROUPS = (("speedup", numbers.ratio), ("tau", numbers.significant))


def columns(cells: Iterable[TableCell]) -> list[str]:
    """Prompt sets in the order of the table, the mean last where there is one."""
    return list(dict.fromkeys(cell.prompt_set for cell in cells))


def paper_rows(cells: Sequence[TableCell], published: Sequence[Published] = ()) -> list[tuple[str, list[str]]]:
    """(method, texts) of the paper's layout at one temperature: speedup and tau for each of `columns`.

    Published lines follow ours, with their target and device in the name.
    """
    sets = columns(cells)
    rows = [(method, _texts(sets, {c.prompt_set: c for c in cells if c.method == method}))
            for method in dict.fromkeys(cell.method for cell in cells)]
    for name, known in _published_lines(published):
        if any(one in sets for one in known):
            rows.append((name, _texts(sets, known)))
    return rows


def _texts(sets: Sequence[str], known: dict[str, Any]) -> list[str]:
    return [write(getattr(known[name], field)) if name in known else numbers.NONE for name in sets for field, write in GROUPS]


def _published_lines(published: Sequence[Published]) -> list[tuple[str, dict[str, Published]]]:
    lines: dict[str, dict[str, Published]] = {}
    for one in published:
        lines.setdefault(f"{one.method}, published ({one.target}, {one.device})", {})[one.prompt_set] = one
    return list(lines.items())


def _tables(cells: Sequence[TableCell], published: Sequence[Published]
            ) -> Iterable[tuple[float, list[TableCell], list[tuple[str, list[str]]]]]:
    for temperature in dict.fromkeys(cell.temperature for cell in cells):
        own = [cell for cell in cells if cell.temperature == temperature]
        yield temperature, own, paper_rows(own, [one for one in published if one.temperature == temperature])


def markdown(cells: Sequence[TableCell], published: Sequence[Published] = (), note: str = "") -> str:
    """One table per temperature; `note` stands below, as a paragraph."""
    parts = []
    for temperature, own, rows in _tables(cells, published):
        heads = [f"{_plain_markdown(name)} {field}" for name in columns(own) for field, _ in GROUPS]
        lines = [f"**Temperature {temperature:g}**", "", _line(["method", *heads]), _line(["---", *["---:"] * len(heads)])]
        lines += [_line([_plain_markdown(method), *texts]) for method, texts in rows]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *([_plain_markdown(note)] if note else [])]) + "\n"


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _plain_markdown(text: str) -> str:
    return " ".join(text.split()).translate(_MARKDOWN)


def latex(cells: Sequence[TableCell], published: Sequence[Published] = (), note: str = "") -> str:
    """One `table` per temperature, for a document that loads `booktabs`."""
    parts = ["% needs \\usepackage{booktabs}"]
    for temperature, own, rows in _tables(cells, published):
        sets = columns(own)
        heads = " & ".join(f"\\multicolumn{{2}}{{c}}{{{_plain_latex(name)}}}" for name in sets)
        rules = "".join(f"\\cmidrule(lr){{{2 * i + 2}-{2 * i + 3}}}" for i in range(len(sets)))
        fields = " & ".join(["speedup & $\\tau$"] * len(sets))
        body = [f"{_plain_latex(method)} & {' & '.join(map(_latex_number, texts))} \\\\" for method, texts in rows]
        ours = len(dict.fromkeys(cell.method for cell in own))
        if len(body) > ours:
            body.insert(ours, "\\midrule")
        caption = _plain_latex(f"Speedup against plain decoding and tau at temperature {temperature:g}. {note}".strip())
        parts.append("\n".join([
            "\\begin{table}", "\\centering", f"\\caption{{{caption}}}", f"\\begin{{tabular}}{{l{'rr' * len(sets)}}}", "\\toprule",
            f" & {heads} \\\\", rules, f"method & {fields} \\\\", "\\midrule", *body, "\\bottomrule", "\\end{tabular}", "\\end{table}"]))
    return "\n\n".join(parts) + "\n"


def _plain_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in " ".join(text.split()))


def _latex_number(text: str) -> str:
    if text == numbers.NONE:
        return "--"
    return text.replace(numbers.THIN, "\\,").replace(numbers.MINUS, "$-$").replace("x", "$\\times$")


def csv_text(cells: Sequence[TableCell], published: Sequence[Published] = ()) -> str:
    """One line per set, method and temperature at full precision; `source` says "measured" or where it was published."""
    file = io.StringIO()
    rows = [{**cell_values(cell), "source": "measured"} for cell in cells]
    rows += [{"set": one.prompt_set, "temperature": one.temperature, "method": one.method, "tau": one.tau, "speedup": one.speedup,
              "source": f"published: {one.target} on {one.device}. {one.source}"} for one in published]
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["set"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def json_object(cells: Sequence[TableCell], differences: Sequence[Difference], info: dict[str, Any],
                published: Sequence[Published] = ()) -> dict[str, Any]:
    """What `bench --json` writes: the request, where it ran, the table, differences, and the published rows apart."""
    named = ("id", "created", "request", "pair", "device", "dtype", "attention", "sessions")
    used = info.get("calibration") or {}
    value = {
        **{name: info.get(name) for name in named}, "calibration_made_at": used.get("made_at"),
        "rows": [cell_values(cell) for cell in cells],
        "differences": [{name: getattr(one, name) for name in Difference.__slots__} for one in differences],
        "published": [{name: getattr(one, name) for name in Published.__slots__} for one in published],
    }
    return json.loads(json.dumps(_finite(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


EXPORTS: dict[str, tuple[str, Callable[..., str]]] = {
    "Markdown": ("md", markdown), "LaTeX": ("tex", latex), "CSV": ("csv", lambda cells, published, note="": csv_text(cells, published)),
}
"""Name of a format -> (file ending, writer of text)."""


def where_words(info: dict[str, Any]) -> str:
    """One sentence that says what was measured where, to stand under a table."""
    request = info["request"]
    limit = "all prompts" if request.get("limit") is None else f"at most {numbers.counted(request['limit'], 'prompt')} a set"
    calibration = (info.get("calibration") or {}).get("made_at", "")
    made = f" Calibration of {calibration[:16].replace('T', ' ')}." if calibration else ""
    return (f"{info.get('pair') or 'Not begun'} on {info.get('device') or 'no device yet'}, {info.get('dtype') or ''}; {limit}, "
            f"at most {numbers.counted(request['max_new_tokens'], 'new token')}, seed {request['seed']}; methods in turn prompt by prompt.{made}")


__all__ = ["EXPORTS", "MEAN", "columns", "csv_text", "json_object", "latex", "markdown", "paper_rows", "where_words"]
