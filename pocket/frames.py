"""Every wording: `[a|b]` stands for one of several, `{x}` for a word.

The wordings of questions and answers are drawn apart from each other, so much of what is hard to
predict in an answer (which phrase comes next) is of no importance, as in real text. Frames are
drawn evenly, of the alternatives within a frame the n-th in proportion to 1/n (Zipf's law).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

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

# Sentences that name the choice first and then say why.
CHOSEN = {
    "kind": (
        "The [choice|word|option] {y} [fits|suits|matches] [best|well], [since|because|as] {x} is"
        " a [kind|type|sort|form] of it.",
        "[Among|Of] the [five|given|listed] [choices|options|words], {y} is the"
        " [class|group|heading] that [takes in|covers|includes] {x}.",
        "{y} is the [broader|wider|more general] [word|term|name] for {x}.",
    ),
    "part": (
        "The [choice|word|option] {y} [fits|suits|matches] [best|well], [since|because|as] {x} is"
        " a [part|piece] of it.",
        "[Among|Of] the [five|given|listed] [choices|options|words], {y} is the one that"
        " [has|includes|contains] {x}.",
    ),
    "capital": (
        "[Among|Of] [these|the five|the listed] cities, {y} is the [capital|seat of government]"
        " of {x}.",
    ),
    "continent": ("[Among|Of] the [five|given|listed] [choices|options], {y} is where {x} lies.",),
    "element": ("[Among|Of] the [five|given|listed] elements, {y} is [what {x} means|the one].",),
    "family": (
        "[Among|Of] the [five|given|listed] [families|groups], the {y} [take in|include] {x}.",
    ),
}

OPENERS = (
    "[Let us|We can] [think|reason] [briefly|step by step|for a moment].",
    "",
    "[Look at|Consider|Take|Start from] the [question|meaning|words] [first|carefully|closely].",
    "[This one|The question] is about [meaning|what things are|plain knowledge|facts].",
    "[Good|Fair|Nice] question.",
    "[Recall|Remember|Note] [this|one thing|a fact].",
    "[Well|Now|Right|Yes], [here is how|this is known|that is known].",
)
CLOSERS = (
    "[None|Not one] of the [other|remaining] [choices|options|four] [fits|suits|matches|works].",
    "The [other|remaining] [four|choices|options] [mean|describe|name]"
    " [something else|other things|different things].",
    "",
    "[That|This] [rules out|excludes|leaves out] the [other|remaining] [four|choices|options].",
    "[So|Hence|Thus] the [others|rest] can be [dropped|set aside|ignored|ruled out].",
    "[No other|Nothing else] in the list [fits|suits|matches|works].",
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
        "A friend brings {n} more.",
        "Then {n} are added.",
        "{name} wins {n} in a game.",
        "The mail brings {n} more.",
        "{name} picks up {n} on the way.",
    ),
    "-": (
        "{name} gives away {n}.",
        "{name} loses {n}.",
        "{name} sells {n} of them.",
        "Then {n} are broken.",
        "A neighbour borrows {n}.",
        "{name} leaves {n} at school.",
        "{n} of them are used up.",
    ),
    "*": (
        "Then the number grows to {n} times as many.",
        "A machine makes {n} out of each one.",
        "Each of them is swapped for {n}.",
    ),
    "/": (
        "They are shared out evenly among {n} people and {name} keeps one share.",
        "{name} puts them into {n} equal piles and keeps one pile.",
    ),
}
ASIDES = (
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "{other} is {k} years old.",
    "The walk home takes {k} minutes.",
    "The shop is at number {k}.",
)
HOW_MANY = (
    "How many {item} are there now?",
    "How many {item} are left in the end?",
    "How many {item} does {name} have now?",
    "What is the number of {item} at the end?",
    "How many {item} is that?",
)

WORKED_START = (
    "",
    "",
    "{name} [starts|begins] with {a}.",
    "[At first|Initially] there are {a}.",
    "[We|I] [start|begin] [from|with|at] {a}.",
    "[Let us|We can] [count|go] [step by step|in order|slowly].",
)
WORKED = {
    "+": (
        "[Then|Next|Now|Later] {a}+{n}={b}.",
        "[Adding|Counting in|Including] [gives|makes|means] {a}+{n}={b}.",
        "[More come in|Some arrive|The number grows]: {a}+{n}={b}.",
        "[With|After|Plus] {n} more: {a}+{n}={b}.",
    ),
    "-": (
        "[Then|Next|Now|Later] {a}-{n}={b}.",
        "[Taking away|Removing|Losing] [gives|leaves|means] {a}-{n}={b}.",
        "[Some go out|A few are gone|The number falls]: {a}-{n}={b}.",
        "[Without|Minus|Less] {n}: {a}-{n}={b}.",
    ),
    "*": (
        "[Then|Next|Now|Later] {a}*{n}={b}.",
        "[Multiplying|Taking each time] [gives|makes|means] {a}*{n}={b}.",
        "[It|The number] [grows|goes up]: {a}*{n}={b}.",
    ),
    "/": (
        "[Then|Next|Now|Later] {a}/{n}={b}.",
        "[Sharing|Splitting|Dividing] [gives|leaves|means] {a}/{n}={b}.",
        "[One share|One part] is kept: {a}/{n}={b}.",
    ),
}
WORKED_END = (
    "",
    "",
    "[That|This] is [all|everything|the last step].",
    "[Nothing|No more] [changes|happens] [after that|then].",
)

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
