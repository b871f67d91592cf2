"""Ready prompts for a first look, one of each kind of text. Written for this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    prompt: str


EXAMPLES: tuple[Example, ...] = (
    Example("Arithmetic", "A baker fills 6 trays with 12 rolls each and sells 45 of them. "
                          "How many rolls are left? Explain step by step."),
    Example("Code", "Write a Python function that returns the longest word in a sentence, "
                    "with a short docstring."),
    Example("Chat", "I slept badly and have a long day ahead. What three small things could I do to feel better?"),
    Example("Summary", "Summarise in two sentences: The lighthouse on the north cape was built in 1871 to guide "
                       "herring boats home. When the fishing ended the keepers left, and the lamp was run by a "
                       "timer. Last year the village bought it back, painted it white, and opened a small museum "
                       "where the old keeper's logbook lies open on the page of the great storm."),
    Example("Translation", "Translate into French: The train to the mountains leaves at eight in the morning."),
    Example("List", "List ten things to pack for a weekend of walking in the hills, one per line."),
    Example("JSON", "Write a JSON object that describes a bicycle: its colour, number of gears, price in euros, "
                    "and a list of two accessories. Write only the JSON."),
    Example("Story", "Tell a short story about a clockmaker who finds that one of her clocks runs backwards."),
)
