"""Three significant digits, thin spaces, units, and one definition a term."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY, define
from bastion.figures.palette import METHOD_LOOKS, OKABE_ITO, bar_fill, css_variables, method_colour, method_dash
from tests.number_cases import CASES


@pytest.mark.parametrize(("kind", "value", "text"), CASES)
def test_numbers_read_as_designed(kind, value, text):
    assert getattr(numbers, kind)(value) == text


@given(st.floats(1e-9, 1e12))
def test_three_significant_digits_are_within_half_a_unit_of_the_last(value):
    written = float(numbers.significant(value).replace(numbers.THIN, ""))
    assert math.isclose(written, value, rel_tol=0.00501)
    digits = numbers.significant(value).replace(numbers.THIN, "").replace(".", "").lstrip("0")
    assert len(digits.rstrip("0")) <= 3


@given(st.integers(-10**12, 10**12))
def test_counts_are_exact(value):
    text = numbers.count(value)
    assert int(text.replace(numbers.THIN, "").replace(numbers.MINUS, "-")) == value
    assert all(len(group) == 3 for group in re.split(numbers.THIN, text.lstrip(numbers.MINUS))[1:])


def test_every_term_of_the_design_is_defined_in_one_sentence_or_two():
    for term in ("target", "drafter", "pair", "block size", "anchor", "root", "marginal", "path probability",
                 "surrogate", "acceptance length", "tau", "verify", "bonus token", "budget", "step time"):
        assert define(term) == GLOSSARY[term]
        assert define(term).endswith(".") and define(term)[0].isupper() or term == "surrogate"


def test_every_term_that_a_figure_points_at_is_defined():
    from bastion.figures.tree_component import HTML, JS
    named = set(re.findall(r'(?:"data-term": |term: |term\()"([^"]+)"', JS)) | set(re.findall(r'data-term="([^"]+)"', HTML))
    assert len(named) >= 10
    assert named - set(GLOSSARY) == set()


def test_methods_keep_their_colours_apart():
    looks = {(method_colour(name), method_dash(name)) for name in METHOD_LOOKS}
    assert len(looks) == len(METHOD_LOOKS)
    bars = {(bar_fill(name)["color"], bar_fill(name)["pattern"]["shape"]) for name in METHOD_LOOKS}
    assert len(bars) == len(METHOD_LOOKS)
    assert method_colour("ddtree:16") == method_colour("ddtree:64")
    assert method_colour("bastion") == OKABE_ITO[5]
    assert method_colour("ar", dark=True) != method_colour("ar")
    assert method_colour("never heard of") == "#767676"


def test_the_style_sheet_takes_its_colours_from_the_palette():
    from bastion.figures.tree_component import CSS
    assert "--accepted: #0072B2;" in css_variables() and css_variables() in CSS
    own = CSS.replace(css_variables(), "")
    assert "#0072B2" not in own and "#D55E00" not in own
