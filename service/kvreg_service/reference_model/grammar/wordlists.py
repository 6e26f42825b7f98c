"""The words of the synthetic chat domain, and seeded draws from them.

Owns the words that fill the slots of a sentence; ``facts`` and the modules above it have the
sentences. The order of each list is part of the grammar: another order gives other chats for the
same seed.
"""

# ruff: noqa: SIM905 - literals would take one line a word.

from __future__ import annotations

from random import Random

NAMES = """
Ada Adam Agnes Alba Alice Amir Anders Anita Anton Anya Arlo Astrid Aziz Bea Beatriz Ben Bianca
Boris Bruno Carla Carlos Carmen Celia Chen Chloe Clara Conrad Dalia Dana Daniel Darius David Diana
Diego Dmitri Dora Edgar Edith Elena Elias Elif Emil Emma Enzo Erik Esther Eva Fatima Felix Fiona
Flora Frank Freya Gabriel Gemma George Gita Goran Greta Hanna Harold Hassan Hector Helen Henrik
Hilda Hugo Ida Igor Imani Ines Ingrid Irene Isaac Ivan Ivy Jack Jana Jasper Javier Jonas Judith
Julia Kamal Karen Karim Katya Keiko Kenji Kiran Lars Laura Layla Leila Lena Leo Liam Lidia Linda
Liv Lorenzo Lucas Lucia Luis Mara Marco Maria Marta Martin Mateo Maya Mei Mila Milo Mina Mira Nadia
Naomi Nico Nils Nina Noah Nora Olaf Olga Oliver Omar Oscar Otto Pablo Paul Pavel Petra Pia Priya
Quinn Rafael Ravi Rita Robin Rosa Ruben Ruth Samir Sandra Sara Sasha Selma Simon Sofia Sonja Stefan
Sven Tamar Tara Theo Tina Tomas Uma Ursula Vera Victor Viktor Wanda Walter Xenia Yara Yuki Yusuf
Zara Zoe Zora
""".split()
CITIES = """
Lisbon Porto Madrid Seville Paris Lyon Berlin Hamburg Munich Vienna Graz Prague Brno Warsaw Krakow
Oslo Bergen Stockholm Malmo Helsinki Turku Riga Vilnius Tallinn Dublin Cork London Leeds Bristol
Glasgow Rome Milan Turin Naples Athens Sofia Bucharest Budapest Zagreb Split Belgrade Istanbul
Ankara Cairo Tunis Rabat Nairobi Accra Lagos Dakar Delhi Mumbai Chennai Tokyo Osaka Kyoto Seoul
Busan Beijing Shanghai Taipei Hanoi Bangkok Jakarta Manila Sydney Perth Auckland Toronto Ottawa
Boston Chicago Denver Austin Dallas Seattle Portland Lima Quito Bogota Santiago Havana Geneva
Zurich Basel Bern Ghent Antwerp Utrecht Delft
""".split()
COLOURS = """
red blue green yellow orange purple pink brown black white grey silver golden teal violet crimson
amber ivory navy olive
""".split()
ITEMS = """
lamp chair table bottle book pencil candle basket mirror clock carpet ladder hammer kettle blanket
bucket cup drum flute guitar hat jacket kite lantern map notebook umbrella pillow ring scarf spoon
ticket towel vase violin wallet whistle stamp shell brush coin key box bag belt camera compass
helmet
""".split()
WORDS = """
falcon river maple harbor copper meadow thunder velvet marble willow ember glacier pepper saturn
tiger walnut zephyr anchor badger cactus dolphin eagle fern ginger hazel igloo jasmine koala lemon
mango nectar otter panda quartz raven saffron tulip urchin violet walrus yarrow zebra beacon canyon
desert echo forest garnet hollow island jungle kernel lagoon magnet nebula orchid pebble quiver
ripple summit timber valley whisper yonder acorn blossom comet dragon feather granite horizon
indigo juniper lantern mosaic nutmeg opal prism rocket silver topaz voyage winter
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SERVICES = """
billing login search payment email report upload export import backup cache gateway metrics logging
invoice profile catalog shipping inventory booking chat calendar review image video audio mobile
admin partner support
""".split()
SERVERS = """
staging production test build backup database mail web proxy monitoring archive demo
""".split()
PROJECTS = """
Aurora Borealis Cascade Delta Eclipse Falcon Galaxy Horizon Iris Juniper Kestrel Lotus Meteor
Nimbus Orion Phoenix Quasar Raptor Sierra Tempest Umbra Vega Willow Xenon Yonder Zenith Atlas
Beacon Comet Dune
""".split()
FRUITS = """
apple pear plum cherry grape melon banana mango peach lemon fig apricot kiwi papaya
""".split()
DRINKS = "tea coffee water milk cocoa juice cider lemonade".split()
ANIMALS = "cat dog horse rabbit parrot turtle hamster goat fox owl".split()
SPORTS = "tennis football chess rowing cycling hockey swimming climbing running golf".split()
PLACES = "kitchen garage office attic cellar hallway library garden workshop lobby".split()
EVENTS = """
deploy review demo meeting release audit interview workshop migration rehearsal exam picnic launch
party training inspection concert lecture delivery dinner
""".split()
KIN = """
sister brother cousin aunt uncle manager landlord dentist teacher neighbour doctor assistant
""".split()
PETS = "cat dog parrot rabbit hamster turtle horse".split()
FAVOURITES = {
    "colour": COLOURS,
    "fruit": FRUITS,
    "drink": DRINKS,
    "animal": ANIMALS,
    "sport": SPORTS,
}
FOUR_DIGIT_CODES = [
    "locker code",
    "door code",
    "gate code",
    "alarm code",
    "safe code",
    "bike lock code",
    "garage code",
    "card pin",
    "phone pin",
]
NUMBERS = [
    "badge number",
    "room number",
    "seat number",
    "table number",
    "invoice number",
    "ticket number",
    "order number",
    "desk number",
    "parking spot",
    "extension",
]
SECRET_WORDS = [
    "code word",
    "password",
    "passphrase",
    "project name",
    "team name",
    "wifi password",
    "secret word",
    "nickname",
]
SYLLABLES = """
ba be bi bo da de di do fa fe ga go ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe po ra re
ri ro sa se si so ta te ti to va ve vi vo za ze zo
""".split()

# A model that sees only listed words learns the list instead of copying.
_INVENTED_SHARE = 0.12


def capitalise(text: str) -> str:
    """``text`` with its first letter in upper case and the rest unchanged."""
    return text[0].upper() + text[1:]


def title_case(text: str) -> str:
    """``text`` with each word capitalised."""
    return " ".join(capitalise(word) for word in text.split())


def draw_invented_word(rng: Random) -> str:
    """A pronounceable word that is in no list."""
    stem = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))
    return stem + rng.choice(["", "n", "r", "s", "l", "x"])


def draw_name(rng: Random) -> str:
    """A first name, sometimes an invented one."""
    if rng.random() < _INVENTED_SHARE:
        return capitalise(draw_invented_word(rng))
    return rng.choice(NAMES)


def draw_word(rng: Random) -> str:
    """A noun, sometimes an invented word."""
    if rng.random() < _INVENTED_SHARE:
        return draw_invented_word(rng)
    return rng.choice(WORDS)


def draw_digits(rng: Random, num_digits: int) -> str:
    """A number of ``num_digits`` digits that does not start with 0."""
    first = str(rng.randint(1, 9))
    return first + "".join(str(rng.randint(0, 9)) for _ in range(num_digits - 1))
