"""(function, value, text) for Python's and the browser's number formatting alike."""

T = "\u2009"

CASES = [
    ("significant", 0, "0"), ("significant", 1.234, "1.23"), ("significant", 14, "14.0"), ("significant", 9.996, "10.0"),
    ("significant", 0.01234, "0.0123"), ("significant", 1234.5, f"1{T}230"), ("significant", 999.6, f"1{T}000"),
    ("significant", 1234567, f"1{T}230{T}000"), ("significant", -0.5, "\u22120.500"), ("significant", None, "\u2013"),
    ("significant", float("nan"), "\u2013"),
    ("count", 12, "12"), ("count", 1234, f"1{T}234"), ("count", 49152, f"49{T}152"), ("count", -1000000, f"\u22121{T}000{T}000"),
    ("seconds", 0.0501, f"50.1{T}ms"), ("seconds", 1.234, f"1{T}230{T}ms"), ("seconds", 9.99, f"9{T}990{T}ms"),
    ("seconds", 9.996, f"10.0{T}s"), ("seconds", 12.34, f"12.3{T}s"), ("seconds", 0, f"0{T}ms"), ("seconds", None, "\u2013"),
    ("ratio", 1.62, "1.62x"), ("ratio", 12.34, "12.3x"), ("ratio", 0.37, "0.370x"),
    ("probability", 0.37, "0.37"), ("probability", 0.094, "0.094"), ("probability", 0.0999, "0.10"), ("probability", 1, "1"),
    ("probability", 0.998, ">0.99"), ("probability", 0.00044, "0.00044"), ("probability", 0.00001, "<0.0001"),
    ("probability", 0, "0"), ("probability", None, "\u2013"),
    ("percent", 0.123, f"12{T}%"), ("percent", 0.001, f"<1{T}%"), ("percent", 0, f"0{T}%"), ("percent", 1, f"100{T}%"),
    ("rate", 45.21, "45.2\u00a0tokens/s"), ("rate", None, "\u2013"),
]
