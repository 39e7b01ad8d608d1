"""Three-way merge of JSON values, and RFC 7396 merge patches: what becomes of two edits of one state.

Law: an edit of one side is never lost unless the other side edited the same thing; where both did, `theirs` wins.
Objects merge key by key. Arrays merge element by element: objects in them are recognised by a unique `id`, other
elements by their content, and what stands in the place of exactly as many others is a change of those. Elements that
both sides added are all kept; a removal and a change of the same element are a conflict. The result is a function of
the three values, and shares containers with them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agui_django.protocol.json_patch import copy_json, json_equal

#: Comparisons of elements that one merge may take; beyond them only elements that are unique are recognised.
COMPARISONS: Final = 500_000
#: Stands for "there is none".
_MISSING: Final[Any] = object()

Wire = dict[str, Any]
Token = tuple[Any, ...]
Pairs = list[tuple[int, int]]


def merge(base: Any, ours: Any, theirs: Any) -> Any:
    """Merge two edits of one JSON value.

    Args:
        base: what both began from.
        ours: what one side made of it.
        theirs: what the other side made of it; it wins where both changed the same thing.

    Returns:
        The merged value; it shares containers with the three, and is not to be changed.
    """
    return _merge(base, ours, theirs, [COMPARISONS])


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7396 merge patch: null removes a member, objects merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy_json(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _merge(base: Any, ours: Any, theirs: Any, left: list[int]) -> Any:
    if ours is theirs or json_equal(ours, theirs):
        return theirs
    if json_equal(theirs, base):
        return ours
    if json_equal(ours, base):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict) and (base is _MISSING or isinstance(base, dict)):
        return _members({} if base is _MISSING else base, ours, theirs, left)
    if isinstance(ours, list) and isinstance(theirs, list) and (base is _MISSING or isinstance(base, list)):
        return _items([] if base is _MISSING else base, ours, theirs, left)
    return theirs


def _members(base: Wire, ours: Wire, theirs: Wire, left: list[int]) -> Wire:
    merged: Wire = {}
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        value = _merge(base.get(key, _MISSING), ours.get(key, _MISSING), theirs.get(key, _MISSING), left)
        if value is not _MISSING:
            merged[key] = value
    return merged


# ---- arrays ---------------------------------------------------------------------------------------------------------


@dataclass
class _Side:
    """What one side made of an array.

    Attributes:
        items: its elements.
        tokens: what they are recognised by.
        kept: of each element of the base the index of what it became here, None where it is gone or moved.
        added: the indexes of what stands before each element of the base, and behind the last one.
        moved: of tokens that are unique the index of what was added: elements of the base that moved, and new ones.
    """

    items: list[Any]
    tokens: list[Token]
    kept: list[int | None]
    added: list[list[int]]
    moved: dict[Token, int]

    def of(self, index: int, token: Token) -> Any:
        """What an element of the base is here."""
        found = self.kept[index]
        if found is None:
            found = self.moved.get(token)
        return _MISSING if found is None else self.items[found]


def _items(base: list[Any], ours: list[Any], theirs: list[Any], left: list[int]) -> list[Any]:
    tokens, mine, yours = _tokens(base, ours, theirs)
    counts = [Counter(each) for each in (tokens, mine, yours)]
    unique = {token for count in counts for token in count if all(each[token] < 2 for each in counts)}
    our = _side(tokens, ours, mine, set(yours), unique, left)
    their = _side(tokens, theirs, yours, set(mine), unique, left)
    return list(_Array(base, tokens, our, their, left).merged())


class _Array:
    """Two edits of one array."""

    def __init__(self, base: list[Any], tokens: list[Token], our: _Side, their: _Side, left: list[int]) -> None:
        self._base = base
        self._tokens = tokens
        self._our = our
        self._their = their
        self._left = left
        self._places = {token: at for at, token in enumerate(tokens)}

    def merged(self) -> Iterator[Any]:
        for index, token in enumerate(self._tokens):
            yield from self._added(index)
            if token not in self._our.moved and token not in self._their.moved:
                yield from self._kept(index)
        yield from self._added(len(self._base))

    def _added(self, place: int) -> Iterator[Any]:
        """What both sides have added (or moved) to a place: ours first; what both added there once."""
        our, their = self._our, self._their
        ours, theirs = our.added[place], their.added[place]
        both = _common([our.tokens[at] for at in ours], [their.tokens[at] for at in theirs], self._left)
        seen_ours = seen_theirs = 0
        for mine, yours in [*both, (len(ours), len(theirs))]:
            for at in ours[seen_ours:mine]:
                if our.tokens[at] not in their.moved:  # there it stands elsewhere, and that wins
                    yield from self._value(our.tokens[at], our.items[at])
            for at in theirs[seen_theirs : yours + 1]:
                yield from self._value(their.tokens[at], their.items[at])
            seen_ours, seen_theirs = mine + 1, yours + 1

    def _value(self, token: Token, item: Any) -> Iterator[Any]:
        """An element at a place that a side chose."""
        our, their = self._our.moved.get(token), self._their.moved.get(token)
        if our is None and their is None:  # one of several that are equal
            yield item
        elif token in self._places:
            yield from self._kept(self._places[token])
        elif our is None or their is None:
            yield item
        else:
            yield _merge(_MISSING, self._our.items[our], self._their.items[their], self._left)

    def _kept(self, index: int) -> Iterator[Any]:
        """An element of the base, unless it is gone."""
        token = self._tokens[index]
        value = _merge(self._base[index], self._our.of(index, token), self._their.of(index, token), self._left)
        if value is not _MISSING:
            yield value


def _side(
    base: list[Token], items: list[Any], tokens: list[Token], other: set[Token], unique: set[Token], left: list[int]
) -> _Side:
    kept: list[int | None] = [None] * len(base)
    added: list[list[int]] = [[] for _ in range(len(base) + 1)]
    # A change becomes what is nowhere else: what the other side has, too, was moved or added.
    known, here = other.union(base), set(tokens)
    done, seen = 0, 0
    for index, at in [*_common(base, tokens, left), (len(base), len(tokens))]:
        gone, new = range(done, index), range(seen, at)
        changed = len(gone) == len(new) and not any(
            token[0] == "id" or token in others
            for others, some in ((here, [base[each] for each in gone]), (known, [tokens[each] for each in new]))
            for token in some
        )
        if changed:
            kept[done:index] = new
        else:
            added[index] += new
        if index < len(base):
            kept[index] = at
        done, seen = index + 1, at + 1
    moved = {tokens[at]: at for some in added for at in some if tokens[at] in unique}
    return _Side(items, tokens, kept, added, moved)


def _tokens(*arrays: list[Any]) -> list[list[Token]]:
    """What the elements of arrays are recognised by: a unique ``id``, else their content."""
    counts = [Counter(_id(item) for item in items) for items in arrays]
    found = []
    for items in arrays:
        tokens = []
        for item in items:
            name = _id(item)
            known = name is not None and all(count[name] < 2 for count in counts)
            tokens.append(("id", name) if known else ("=", _content(item)))
        found.append(tokens)
    return found


def _id(item: Any) -> Token | None:
    name = item.get("id") if isinstance(item, dict) else None
    return (type(name).__name__, name) if isinstance(name, str | int) and not isinstance(name, bool) else None


def _content(value: Any) -> Any:
    """Equal for what `json_equal` calls equal, and can be hashed."""
    if isinstance(value, dict):
        return "{", *sorted((key, _content(item)) for key, item in value.items())
    if isinstance(value, list):
        return "[", *map(_content, value)
    return (type(value).__name__, value) if isinstance(value, bool | str) or value is None else ("number", value)


# ---- common subsequences --------------------------------------------------------------------------------------------


def _common(old: Sequence[Token], new: Sequence[Token], left: list[int]) -> Pairs:
    """The indexes of elements that two lists have in common, in order."""
    start, old_end, new_end = 0, len(old), len(new)
    while start < old_end and start < new_end and old[start] == new[start]:
        start += 1
    while old_end > start and new_end > start and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    pairs = [(at, at) for at in range(start)]
    pairs += [(start + one, start + two) for one, two in _middle(old[start:old_end], new[start:new_end], left)]
    return pairs + list(zip(range(old_end, len(old)), range(new_end, len(new)), strict=True))


def _middle(old: Sequence[Token], new: Sequence[Token], left: list[int]) -> Pairs:
    if len(old) * len(new) <= left[0]:
        return _longest(old, new, left)
    pairs: Pairs = []
    done, seen = 0, 0
    for one, two in [*_anchors(old, new), (len(old), len(new))]:
        gap, other = old[done:one], new[seen:two]
        if len(gap) * len(other) <= left[0]:
            pairs += [(done + a, seen + b) for a, b in _longest(gap, other, left)]
        if one < len(old):
            pairs.append((one, two))
        done, seen = one + 1, two + 1
    return pairs


def _longest(old: Sequence[Token], new: Sequence[Token], left: list[int]) -> Pairs:
    """The longest common subsequence."""
    left[0] -= len(old) * len(new)
    lengths = [[0] * (len(new) + 1)]
    for one in reversed(old):
        below, row = lengths[-1], [0] * (len(new) + 1)
        for at in range(len(new) - 1, -1, -1):
            row[at] = below[at + 1] + 1 if one == new[at] else max(below[at], row[at + 1])
        lengths.append(row)
    lengths.reverse()
    pairs: Pairs = []
    a = b = 0
    while a < len(old) and b < len(new):
        if old[a] == new[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        elif lengths[a + 1][b] >= lengths[a][b + 1]:
            a += 1
        else:
            b += 1
    return pairs


def _anchors(old: Sequence[Token], new: Sequence[Token]) -> Pairs:
    """The longest common subsequence of what is unique in both."""
    places = {token: at for at, token in enumerate(new)}
    once = [{token for token, count in Counter(some).items() if count == 1} for some in (old, new)]
    found = [(at, places[token]) for at, token in enumerate(old) if token in once[0] and token in once[1]]
    ends: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for number, (_, place) in enumerate(found):
        length = bisect_left(ends, place)
        before.append(heads[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        heads[length : length + 1] = [number]
    pairs: Pairs = []
    number = heads[-1] if heads else -1
    while number >= 0:
        pairs.append(found[number])
        number = before[number]
    return pairs[::-1]
