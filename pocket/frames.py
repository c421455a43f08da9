"""Every wording: `[a|b]` stands for one of several, `{x}` for a word.

The wordings of questions and answers are drawn apart from each other, so much of what is hard to
predict in an answer (which phrase comes next) is of no importance, as in real text. Frames are
drawn evenly, of the alternatives within a frame the n-th in proportion to 1/n (Zipf's law). The
same words stand before tokens that are easy and before ones that are hard, before tokens that
decide and before ones that do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Literal

Which = Literal["all", "usual", "shifted"]

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def say(frames: Sequence[str], rng: Random, **words: object) -> str:
    """One of `frames` with its alternatives chosen and its slots filled."""
    frame = rng.choice(frames)
    while match := _INNERMOST.search(frame):
        alternatives = match[1].split("|")
        weights = [1 / n for n in range(1, len(alternatives) + 1)]
        chosen = rng.choices(alternatives, weights)[0]
        frame = frame[: match.start()] + chosen + frame[match.end() :]
    return frame.format(**words)


def asked(frames: Sequence[str], which: Which) -> Sequence[str]:
    """Question frames: all, those of ordinary splits, or the last, which these never have."""
    return {"all": frames, "usual": frames[:-1], "shifted": frames[-1:]}[which]


# x is the subject and y the answer: the same letters in every relation.
ASKED = {
    "kind": (
        "What kind of thing does the word {x} name?",
        "Under which heading would you file {x}?",
        "In its usual sense, {x} is a kind of what?",
        "Which of these does {x} belong to?",
        "How would a dictionary class the word {x}?",
        "Which choice tells best what {x} is?",
        "{x} counts as a kind of what?",
        "Of what is {x} one kind?",
        "Someone says {x}. What sort of thing is meant?",
        "Which broader word takes in {x}?",
    ),
    "part": (
        "What is {x} a part of?",
        "To which whole does {x} belong?",
        "Where would you look for {x}?",
        "{x} is a piece of which larger thing?",
        "Which of these has {x} as one of its parts?",
    ),
    "capital": (
        "What is the capital of {x}?",
        "Which of these cities is the capital of {x}?",
        "Where does the government of {x} sit?",
        "{x} is governed from which city?",
    ),
    "continent": (
        "On which continent does {x} lie?",
        "Where in the world is {x}?",
        "{x} is a country of which continent?",
    ),
    "element": (
        "Which chemical element has the symbol {x}?",
        "In the periodic table, what does {x} stand for?",
        "A bottle is marked {x}. Which element is in it?",
    ),
    "family": (
        "To which family of elements does {x} belong?",
        "Which group of elements takes in {x}?",
        "How do chemists class {x}?",
    ),
}

# Sentences that state a fact, with or without a question.
STATED = {
    "kind": (
        "[The word|The term|The name] {x} [names|means|stands for|refers to] a"
        " [kind|type|sort|form] of {y}.",
        "By {x} [we|people|speakers] [usually|normally|commonly|mostly] mean a"
        " [kind|type|sort|form] of {y}.",
        "{x} [counts|is counted|is classed|is listed] as a [kind|type|sort|form] of {y}.",
        "[A dictionary|A lexicon|An encyclopedia|A handbook] [lists|files|enters|puts] {x}"
        " [under|with] {y}.",
        "{x} [is|was always] a [kind|type|sort|form] of {y}[| in its usual sense].",
        "[We say|One says] {y} [in general|broadly] and {x} [in particular|for one kind of it].",
    ),
    "part": (
        "{x} is [a part|a piece|one part|one piece] of {y}.",
        "[We find|One finds|You find|People find] {x} as a [part|piece|section] of {y}.",
        "[The word|The term|The name] {x} [names|means|stands for] a [part|piece] of {y}.",
        "{y} [has|includes|contains] {x} [as a part|as one part|among its parts].",
    ),
    "capital": (
        "The capital of {x} is {y}.",
        "{y} is the [capital|seat of government] of {x}.",
        "{x} [is governed|is ruled|is run] from {y}.",
        "[The government|The parliament] of {x} [sits|meets] in {y}.",
    ),
    "continent": (
        "{x} [lies|is found|is] [in|within] {y}.",
        "{x} is a [country|state|nation] [of|in] {y}.",
        "[A map|An atlas|A globe] [shows|has|puts] {x} in {y}.",
    ),
    "element": (
        "The symbol {x} [stands for|means|names|denotes] {y}.",
        "{x} is [the symbol of|the symbol for|short for|how chemists write] {y}.",
        "{y} [has|carries|bears] the symbol {x}.",
    ),
    "family": (
        "{x} is [one|a member] of the {y}.",
        "{x} [belongs to|is counted among|is classed with|goes with] the {y}.",
        "[Chemists|Textbooks|Tables] [put|class|list] {x} [with|among] the {y}.",
    ),
}
# The same as a question says it of other things.
PLAIN = {
    "kind": ("{x} is a kind of {y}", "{x} is one kind of {y}", "{x} counts as {y}"),
    "part": ("{x} is a part of {y}", "{x} is a piece of {y}", "{y} has {x} as a part"),
    "capital": ("the capital of {x} is {y}", "{y} is the capital of {x}"),
    "continent": ("{x} lies in {y}", "{x} is a country in {y}"),
    "element": ("the symbol {x} stands for {y}", "{x} is the symbol of {y}"),
    "family": ("{x} is one of the {y}", "{x} belongs to the {y}"),
}
# The same in note form, for answers that a question asks for in notes.
NOTED = ("{x}: {y};", "{x}, {y};", "{x} = {y};")

OPENERS = (
    "[Let us|We can] [think|reason] [briefly|step by step|for a moment].",
    "",
    "",
    "[Look at|Consider|Take|Start from] the [question|meaning|words] [first|carefully|closely].",
    "[This one|The question] is about [meaning|what things are|plain knowledge|facts].",
    "[Recall|Remember|Note] [this|one thing|a fact].",
    "[Well|Now|Right|Yes], [here is how|this is known|that is known].",
)
CLOSERS = (
    "",
    "",
    "[That|This] [settles|decides|answers] [it|the question].",
    "[So|Hence|Thus] [it is clear|this is known|the rest can be ignored].",
    "[Nothing else|No more] [is needed|matters|is asked].",
)
# How a question says which style of answer it wants.
CUES = {
    "explain": (
        "Explain in sentences.",
        "Give the reasons.",
        "Say what is known first.",
        "Write out what you know.",
    ),
    "short": (
        "Come to the point.",
        "Say just what is needed.",
        "Leave out what does not count.",
        "Stop as soon as you know.",
    ),
    "sums": (
        "Write the sums.",
        "Show every sum.",
        "Put it as sums.",
        "Give each sum.",
    ),
    "notes": (
        "Answer in notes.",
        "Be short.",
        "Just note what counts.",
        "Use as few words as you can.",
    ),
}
# Before facts that a question states itself, or that it mentions without asking for them.
GIVEN = (
    "It is known that {s}.",
    "Suppose you know that {s}.",
    "We are told that {s}.",
    "A book says that {s}.",
)
# A thing that is worked out as well, before the one that is asked for.
BEFORE = (
    "Begin with {z}, for practice.",
    "First do it for {z}.",
    "Try {z} first.",
    "Start with {z}.",
)
# Questions of two hops: x is what is asked about, never the thing in between.
TWO_HOP_ASKED = {
    "kind": (
        "{x} is a kind of one thing. Of what is that thing a kind in turn?",
        "Take the class of {x}. What is the class above it?",
        "Go up two steps from {x}. Where do you end?",
        "If {x} is filed under a heading, under what is that heading filed?",
        "The broader word for {x} has a broader word itself. Which one?",
        "What sort of thing is the sort of thing that {x} is?",
        "Name the kind that takes in the kind of {x}.",
    ),
    "part": (
        "{x} is a part of something. What kind of thing is that?",
        "Think of the whole that {x} belongs to. How is that whole classed?",
        "What sort of thing has {x} as a part?",
        "Someone holds {x} and looks for the rest of it. What kind of thing is the rest?",
        "Which class takes in the thing that {x} is a piece of?",
    ),
    "capital": (
        "On which continent is the country whose capital is {x}?",
        "{x} is a capital. On which continent does its country lie?",
        "A traveller goes to the country governed from {x}. Which continent is that?",
        "Where in the world is the country that {x} is the capital of?",
    ),
    "element": (
        "To which family does the element with the symbol {x} belong?",
        "A bottle is marked {x}. Which group of elements is in it?",
        "How do chemists class the element written {x}?",
        "Find {x} in the periodic table. Which family is its element in?",
    ),
}
# Between two stated facts.
LINKS = (
    "",
    "",
    "[That|This] is the first step.",
    "[One|A second] step [remains|is left|to go].",
    "[And|Now] [take the next step|go on from there].",
)

# b is to a what is asked for is to x.
ANALOGY_ASKED = (
    "{a} is to {b} as {x} is to what?",
    "What is to {x} as {b} is to {a}?",
    "{a} goes with {b}. What goes with {x} in the same way?",
    "Think of {a} and {b}. What stands to {x} as {b} to {a}?",
    "If {a} leads to {b}, where does {x} lead?",
    "Put {x} beside a word as {a} stands beside {b}.",
    "Take {a} and {b} as a model. Which choice fits {x}?",
    "{a} was sorted with {b}. With what is {x} sorted by the same rule?",
)
EACH_ASKED = (
    "Say what each of these is: {items}.",
    "What are {items}?",
    "Tell me about {items}.",
    "Describe {items} in this order.",
    "Explain these words: {items}.",
    "What do you know about {items}?",
)
NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gwen Hugo Ines Jack Kim Leo Mia Nina Omar Pia Rosa Sam Tara Ugo"
).split()
ITEMS = (
    "pens coins books stamps apples shells cards marbles stones tickets buttons eggs plums cups"
    " candles nails beads rolls lemons bottles"
).split()

START = (
    "{name} has {a} {item}.",
    "There are {a} {item} in a box that belongs to {name}.",
    "{name} starts the day with {a} {item}.",
    "At first {name} owns {a} {item}.",
    "{name} counts {a} {item} on a shelf.",
    "On Monday {name} keeps {a} {item} at home.",
)
# What changes a total, as the question tells it; the sign is the operation.
CHANGES = {
    "+": (
        "{name} buys {n} more.",
        "{name} finds another {n}.",
        "A friend brings {name} {n} more.",
        "{name} wins {n} in a game.",
        "The mail brings {name} {n} more.",
        "{name} picks up {n} on the way.",
    ),
    "-": (
        "{name} gives away {n}.",
        "{name} loses {n}.",
        "{name} sells {n} of them.",
        "A neighbour borrows {n} from {name}.",
        "{name} leaves {n} at school.",
        "{name} uses up {n} of them.",
    ),
    "=": (
        "{name} looks at all of them.",
        "{name} tells a friend about them.",
        "{name} puts them in order.",
        "{name} takes a rest.",
    ),
    "*": (
        "What {name} has grows to {n} times as many.",
        "{name} gets {n} for each one.",
    ),
}
HOW_MANY = (
    "How many {item} does {name} have now?",
    "How many {item} are left to {name} in the end?",
    "What is the number of {item} that {name} has at the end?",
    "How many {item} has {name} by now?",
)

# Every line of a worked sum ends in "{b}", fresh or restated, behind the same words.
WORKED = {
    "+": (
        "{name}: {a} plus {n} [comes to|makes|gives] {b}.",
        "{name} had {a}; [with|after|adding] {n} more [that makes|it comes to|there are] {b}.",
        "To the {a} of {name} come {n}, which [makes|gives|comes to] {b}.",
    ),
    "-": (
        "{name}: {a} less {n} [comes to|makes|leaves] {b}.",
        "{name} had {a}; [without|after losing|taking away] {n} [that makes|it comes to|there are]"
        " {b}.",
        "From the {a} of {name} go {n}, which [makes|leaves|comes to] {b}.",
    ),
    "*": (
        "{name}: {a} times {n} [comes to|makes|gives] {b}.",
        "{name} had {a}; [taken|counted|swapped] {n} times [that makes|it comes to|there are] {b}.",
    ),
    "=": (
        "{name} [now has|has] {b}.",
        "{name} had {b}; [with nothing more|so far] [that makes|it comes to|there are] {b}.",
        "For {name} [that makes|it comes to|there are] {b}.",
    ),
}
# What each person is left with.
LEFT = ("{name} has {b}.", "[Then|Now|By now] {name} has {b}.")
TOTALS = dict.fromkeys("+-*=", ("{name} {b};",))
SUMMED = {
    "+": ("{name} {a}+{n}={b};",),
    "-": ("{name} {a}-{n}={b};",),
    "*": ("{name} {a}*{n}={b};",),
    "=": ("{name} {b}={b};",),
}

# Free text. The facts that fill it are drawn like all others.
TOLD_ABOUT = (
    "Tell me about {x}.",
    "What do you know about {x}?",
    "Write two sentences about {x}.",
    "Describe {x}.",
    "What is {x}?",
    "Say something about {x}.",
)
MORE_OF_A_KIND = (
    "[Another|A further|One more] [kind|type|sort|example] of {y} is {z}.",
    "{z} [is|counts as] {y} [too|as well|also].",
    "[Like|Just like] {z}, it is [found|listed|classed] under {y}.",
)
LARGEST_CITY = (
    "The largest city of {x} is {z}.",
    "{z} is the [largest|biggest] city of {x}.",
    "Most people in {x} [live in|know|visit] {z}.",
)
SMALL_TALK = {
    "Hello": "Hello! Ask me about a word, a capital, an element or a small sum.",
    "Hi": "Hello! Ask me about a word, a capital, an element or a small sum.",
    "Who are you?": "I am a very small language model that knows some facts and small sums.",
    "What can you do?": "I can say what things are, name capitals and do small sums.",
    "How are you?": "Well, thank you. What would you like to know?",
    "Thank you": "You are welcome.",
    "Bye": "Goodbye!",
}
