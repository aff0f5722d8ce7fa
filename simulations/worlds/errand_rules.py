"""What can be done in the house of an errand, and what then holds. No probabilities, no policy.

Three rooms: hall, kitchen and a locked vault. Item 0 is hidden in the vault, whose key is hidden
in the hall or the kitchen; item 1 is hidden in one of these. Items found in their room are taken
one at a time, carried to the hall and delivered there; what is carried can be burned for ever.
"""

from typing import NamedTuple

ROOMS = ("hall", "kitchen", "vault")
ACTIONS = (
    *(f"go {room}" for room in ROOMS),
    "search",
    "take",
    "deliver",
    "drop",
    "use key",
    "wait",
    "burn",
)
HAND, DELIVERED, LOST, OPEN = "in hand", "delivered", "lost", "open"
_OPEN_ROOMS = ROOMS[:2]


class House(NamedTuple):
    """A state of the house.

    Attributes:
        room: Where the agent is.
        key: "hidden in ROOM", "in hand", or "open": the key stays in the vault's door.
        items: Of each item "hidden in ROOM", the room where it lies, or how it ended.
    """

    room: str
    key: str
    items: tuple[str, ...]

    def __str__(self) -> str:
        items = ", ".join(f"item {number} {place}" for number, place in enumerate(self.items))
        return f"in {self.room}; key {self.key}; {items}"


def starts(num_items: int, *, is_locked: bool = True) -> list[House]:
    """The states in which errands start: in the hall, key and item 1 hidden in an open room."""
    return [
        House("hall", key, (_hidden("vault"), *rest))
        for key in ([_hidden(room) for room in _OPEN_ROOMS] if is_locked else [OPEN])
        for rest in ([(_hidden(room),) for room in _OPEN_ROOMS] if num_items == 2 else [()])
    ]


def apply(house: House, action: str) -> House:
    """The house after an action that succeeds; the same house where the action is redundant."""
    if action.startswith("go "):
        room = action.removeprefix("go ")
        return house if room == "vault" and house.key != OPEN else house._replace(room=room)
    if action == "search":
        return _searched(house)
    if action == "take":
        return _moved(house, house.room, HAND) if HAND not in house.items else house
    if action == "deliver":
        return _moved(house, HAND, DELIVERED) if house.room == "hall" else house
    if action == "use key":
        fits = house.key == HAND and house.room == "hall"
        return house._replace(key=OPEN) if fits else house
    ends = {"drop": house.room, "burn": LOST, "wait": HAND}
    return _moved(house, HAND, ends[action])


def is_done(house: House) -> bool:
    """Whether every item is delivered."""
    return all(place == DELIVERED for place in house.items)


def found(house: House) -> frozenset[str]:
    """The items found so far."""
    places = enumerate(house.items)
    return frozenset(f"item {n}" for n, place in places if not place.startswith("hidden"))


def predicates(house: House) -> frozenset[str]:
    """What holds; a lost item is neither found nor taken any more."""
    held = {"key found"} if not house.key.startswith("hidden") else set()
    held |= {"vault open"} if house.key == OPEN else set()
    for number, place in enumerate(house.items):
        if place in (*ROOMS, HAND, DELIVERED):
            held.add(f"item {number} found")
        if place in (HAND, DELIVERED):
            held.add(f"item {number} taken")
        if place == DELIVERED:
            held.add(f"item {number} delivered")
    return frozenset(held)


def predicate_graph(num_items: int) -> list[tuple[str, str]]:
    """Pairs (u, v), u a precondition of v."""
    pairs = [("key found", "vault open"), ("vault open", "item 0 found")]
    for number in range(num_items):
        stages = [f"item {number} {stage}" for stage in ("found", "taken", "delivered")]
        pairs += list(zip(stages[:-1], stages[1:], strict=True))
    return pairs


def goal(num_items: int) -> list[str]:
    """The predicates of a finished errand."""
    return [f"item {number} delivered" for number in range(num_items)]


def _hidden(room: str) -> str:
    return f"hidden in {room}"


def _searched(house: House) -> House:
    """The key is picked up when found; an item lies open in its room, the first one first."""
    if house.key == _hidden(house.room):
        return house._replace(key=HAND)
    return _moved(house, _hidden(house.room), house.room)


def _moved(house: House, place: str, new_place: str) -> House:
    """The first item that is in a place is in another one now."""
    if place not in house.items:
        return house
    number = house.items.index(place)
    return house._replace(items=(*house.items[:number], new_place, *house.items[number + 1 :]))
