"""A layout as text, as a Mermaid flowchart and as an SVG picture, for `python -m ddppo.fragments`."""

from html import escape

from ddppo.distributed.topologies.contract import Layout, Message, Role

# Sizes of the SVG picture in pixels. _GAP: between boxes, and between arrows. _LOOP: width of an arrow to its own role.
_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _GAP, _TOP, _LOOP = 860, 250, 96, 56, 24, 40
_MOST_RANKS = 6  # longer lists of ranks are shortened


def as_text(layout: Layout, title: str) -> str:
    """Return the tasks of each role, the messages, and the bytes of an iteration."""
    lines = [title, ""]
    for role in layout.roles:
        lines.append(f"{role.name}: {ranks_in_words(role.ranks)}; {_holds(layout, role)}")
        lines += [f"  {number}. {step}" for number, step in enumerate(role.does, start=1)]
    lines.append("")
    if not layout.messages:
        return "\n".join([*lines, "There are no messages."])
    lines += [_message_in_words(message) for message in layout.messages]
    total = sum(_bytes_of_iteration(layout, message) for message in layout.messages)
    lines.append(f"All ranks together send {size_in_words(total)} in an iteration.")
    return "\n".join(lines)


def as_mermaid(layout: Layout) -> str:
    """Return a Mermaid flowchart, which GitHub draws."""
    roles = [
        f"{role.name}<br/>{ranks_in_words(role.ranks)}<br/>{_holds(layout, role)}" for role in layout.roles
    ]
    boxes = [f'  {_id(role.name)}["{text}"]' for role, text in zip(layout.roles, roles, strict=True)]
    lines = ["flowchart LR", *boxes]
    for message in layout.messages:
        label = f"{message.what}<br/>{message.how}, {message.times} x {size_in_words(message.num_bytes)}"
        lines.append(f'  {_id(message.source)} -->|"{label}"| {_id(message.target)}')
    return "\n".join(lines)


def as_svg(layout: Layout, title: str) -> str:
    """Return a sequence diagram: a box for each role, a line down from each box, and an arrow for each message."""
    number = len(layout.roles)
    width = max(_WIDTH, number * (_BOX_WIDTH + _GAP))
    # The x coordinate of each role's line.
    lines = {role.name: int(width * (k + 0.5) / number) for k, role in enumerate(layout.roles)}
    below = _TOP + _BOX_HEIGHT
    height = below + (len(layout.messages) + 1) * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:14px system-ui,sans-serif;fill:#222}.q{font-size:12px;fill:#555}"
        "rect{fill:#f5f8fb;stroke:#0072b2}path{stroke:#d55e00;fill:none;stroke-width:1.5}.h{fill:#d55e00;stroke:none}"
        ".l{stroke:#999;stroke-width:1;stroke-dasharray:3 4}"
        "@media(prefers-color-scheme:dark){text{fill:#eee}.q{fill:#bbb}rect{fill:#1d2730}}</style>",
    ]
    # Boxes and lines of the roles, then the messages from top to bottom.
    for role in layout.roles:
        x = lines[role.name]
        rows = [(role.name, ""), (ranks_in_words(role.ranks), "q"), (_holds(layout, role), "q")]
        parts.append(f'<path class="l" d="M{x} {below}V{height - 8}"/>')
        left = x - _BOX_WIDTH // 2
        parts.append(f'<rect x="{left}" y="{_TOP}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>')
        parts += [
            f'<text x="{left + 14}" y="{_TOP + 28 + 24 * k}" class="{kind}">{escape(line)}</text>'
            for k, (line, kind) in enumerate(rows)
        ]
    for k, message in enumerate(layout.messages):
        parts.append(
            _arrow(lines[message.source], lines[message.target], message, below + (k + 1) * _GAP, width)
        )
    return "\n".join([*parts, "</svg>\n"])


def _arrow(start: int, end: int, message: Message, y: int, width: int) -> str:
    """Return an arrow between two lines, or a loop at one line, with the message beside it."""
    if start == end:
        out = -_LOOP if start > width // 2 else _LOOP
        path, head, text = f"M{start} {y - 10}h{out}v14h{-out}", out // 4, start + out * 5 // 4
        anchor, y = "end" if out < 0 else "start", y + 4
    else:
        path, head, text = f"M{start} {y}H{end}", -10 if end > start else 10, (start + end) // 2
        anchor = "middle"
    above = y - 22 if start != end else y - 12
    how = f"{message.how}, {message.times:,} times {size_in_words(message.num_bytes)}"
    return (
        f'<path d="{path}"/><path class="h" d="M{end} {y}l{head} -5v10z"/>'
        f'<text x="{text}" y="{above}" text-anchor="{anchor}">{escape(message.what)}</text>'
        f'<text x="{text}" y="{above + 16}" text-anchor="{anchor}" class="q">{escape(how)}</text>'
    )


def ranks_in_words(ranks: tuple[int, ...]) -> str:
    """Return "rank 0", "ranks 1 to 7", or the first and last of many; a role without ranks is other processes."""
    if not ranks:
        return "processes of their own, no ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > _MOST_RANKS:
        return f"{len(ranks)} ranks, {', '.join(map(str, ranks[:3]))}, ..., {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def size_in_words(num_bytes: float) -> str:
    """Return a number of bytes with its unit."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def _holds(layout: Layout, role: Role) -> str:
    """Return the objects that a role holds, in words."""
    # Environments are held by the role without ranks, if there is one: central_inference's observers.
    apart = any(not other.ranks for other in layout.roles)
    held = [
        ("environments", not role.ranks if apart else role.steps),
        ("policy", role.acts or role.learns),
        ("optimizer", role.learns),
    ]
    return "holds " + (", ".join(name for name, is_held in held if is_held) or "nothing")


def _message_in_words(message: Message) -> str:
    times = "once" if message.times == 1 else f"{message.times:,} times"
    return (
        f"{message.what}: {message.source} -> {message.target}, {message.how}, {times} an iteration, "
        f"{size_in_words(message.num_bytes)} of each {message.source} rank"
    )


def _bytes_of_iteration(layout: Layout, message: Message) -> int:
    senders = next(role for role in layout.roles if role.name == message.source)
    return message.times * message.num_bytes * max(1, len(senders.ranks))


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
