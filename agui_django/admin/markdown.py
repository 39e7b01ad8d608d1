"""What users and agents wrote, as HTML that does nothing: markdown, raw text, and JSON as a tree.

Law: no markup of a writer becomes markup of the page. Markdown is rendered with HTML off and then cut down to a short
list of tags; images are never loaded, links are absolute and say where they lead. Without the packages of
``agui-django[admin]`` texts are shown as they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.utils.html import escape, format_html, format_html_join, strip_tags
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agui_django.protocol.codec import encode

#: Characters of a message, and of a page, that are rendered; the rest is plain text.
MESSAGE, PAGE = 20 * 1024, 60 * 1024
#: Characters of a value that a page holds.
CUT = 16 * 1024
#: Levels of a tree that are open, levels that it has, and members that a level shows.
OPEN, DEEP, WIDE = 3, 24, 200

_TAGS = frozenset(
    {
        "p", "br", "hr", "em", "strong", "del", "blockquote", "code", "pre", "ul", "ol", "li", "a", "span",
        "table", "thead", "tbody", "tr", "th", "td", "h1", "h2", "h3", "h4", "h5", "h6",
    }
)  # fmt: skip
#: Bidi controls, zero-width and tag characters: what a reader does not see.
_UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


class Words:
    """Renders the texts of one page, until it has had enough.

    Args:
        budget: characters that are rendered as markdown.
    """

    def __init__(self, budget: int = PAGE) -> None:
        """Nothing was rendered yet."""
        self._left = budget

    def html(self, text: str) -> SafeString:
        """A text as HTML."""
        render = _renderer()
        if render is None or len(text) > min(MESSAGE, self._left):
            return raw(text)
        self._left -= len(text)
        html = render(text)
        # The renderer drops what is nested too deep, without a word.
        if _letters(strip_tags(html)) * 2 < _letters(re.sub(r"\]\([^)]*\)", "]", text)):
            return raw(text)
        return format_html('<div class="agui-text" dir="auto">{}</div>', mark_safe(html))  # noqa: S308 - cleaned


def raw(text: str, size: int | None = None) -> SafeString:
    """A text as it is, with marks for characters that cannot be seen; a long one is cut.

    Args:
        text: the text, or its beginning.
        size: how long all of it is.
    """
    shown, size = text[:CUT], size or len(text)
    marked = _UNSEEN.sub(lambda found: f"\u2039U+{ord(found[0]):04X}\u203a", escape(shown))
    cut = cut_note(size) if size > CUT else ""
    return format_html('<pre class="agui-raw" dir="auto">{}</pre>{}', mark_safe(marked), cut)  # noqa: S308 - escaped


def cut_note(size: int) -> SafeString:
    """Says that only the beginning is shown."""
    words = _("The first %(shown)d of %(size)d characters.") % {"shown": CUT, "size": size}
    return format_html('<p class="agui-cut">{}</p>', words)


def tree(value: Any, depth: int = 0) -> SafeString:
    """JSON as nested details, which work without a script; text in it is found by the browser's search."""
    if isinstance(value, Mapping | list) and value:
        if depth >= DEEP:
            return _leaf(encode(value))
        items: list[tuple[str, Any]] = (
            [(str(key), item) for key, item in value.items()]
            if isinstance(value, Mapping)
            else [(str(number), item) for number, item in enumerate(value)]
        )
        rows = format_html_join("", "<li><b>{}</b> {}</li>", ((k, tree(v, depth + 1)) for k, v in items[:WIDE]))
        if len(items) > WIDE:
            rows += format_html("<li>{}</li>", _("%(count)d more") % {"count": len(items) - WIDE})
        name = ngettext("%(count)d member", "%(count)d members", len(items)) % {"count": len(items)}
        opened = mark_safe(" open") if depth < OPEN else ""
        return format_html("<details{}><summary>{}</summary><ul>{}</ul></details>", opened, name, rows)
    return _leaf(value if isinstance(value, str) else encode(value), quoted=isinstance(value, str))


def _leaf(text: str, *, quoted: bool = False) -> SafeString:
    if len(text) > 200 or "\n" in text:
        return raw(text)
    marked = _UNSEEN.sub(lambda found: f"\u2039U+{ord(found[0]):04X}\u203a", escape(text))
    mark = "\u201c{}\u201d" if quoted else "{}"
    return format_html("<code dir='auto'>" + mark + "</code>", mark_safe(marked))  # noqa: S308 - escaped


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


@functools.cache
def _renderer() -> Callable[[str], str] | None:
    """Markdown to clean HTML; None where the packages are not installed."""
    try:
        import nh3
        from markdown_it import MarkdownIt
    except ImportError:
        return None
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])

    def image(_self: Any, tokens: Sequence[Any], position: int, _options: Any, _env: Any) -> str:
        host = _host(str(tokens[position].attrGet("src") or "")) or _("this page")
        name = _("image from %(host)s (not loaded)") % {"host": host}
        return f'<span class="agui-host">{escape(name)} {escape(tokens[position].content)}</span>'

    def opened(self: Any, tokens: Sequence[Any], position: int, options: Any, env: Any) -> str:
        env.setdefault("hosts", []).append(_host(str(tokens[position].attrGet("href") or "")))
        text: str = self.renderToken(tokens, position, options, env)
        return text

    def closed(_self: Any, _tokens: Sequence[Any], _position: int, _options: Any, env: Any) -> str:
        host = env["hosts"].pop()
        return f'</a><span class="agui-host"> ({escape(host)})</span>' if host else "</a>"

    for name, rule in (("image", image), ("link_open", opened), ("link_close", closed)):
        parser.add_render_rule(name, rule)

    def only_absolute(tag: str, name: str, value: str) -> str | None:
        return value if (tag, name) != ("a", "href") or _host(value) or value.startswith("mailto:") else None

    def render(text: str) -> str:
        return nh3.clean(
            parser.render(text, {}),
            tags=set(_TAGS),
            attributes={"a": {"href"}},
            allowed_classes={"span": {"agui-host"}},
            attribute_filter=only_absolute,
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
            set_tag_attribute_values={"a": {"target": "_blank"}},
        )

    return render


def _host(url: str) -> str:
    """The host of an absolute web address; empty for any other."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.scheme in ("http", "https") else ""
