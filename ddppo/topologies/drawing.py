"""A layout as text, Mermaid and SVG."""

from html import escape

from ddppo.topologies.declaration import Layout, Message, Role

_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _GAP = 860, 250, 96, 56


def as_text(layout: Layout, title: str) -> str:
    """Return who does what, what travels, and the bytes of an iteration."""
    lines = [title, ""]
    for role in layout.roles:
        lines.append(f"{role.name}: {ranks_in_words(role.ranks)}; {_holds(role)}")
        lines += [f"  {number}. {step}" for number, step in enumerate(role.does, start=1)]
    lines.append("")
    if not layout.messages:
        return "\n".join([*lines, "Nothing travels."])
    lines += [_said(message) for message in layout.messages]
    total = sum(_bytes_of_iteration(layout, message) for message in layout.messages)
    lines.append(f"An iteration moves {size_in_words(total)} in all, handed over by their sources.")
    return "\n".join(lines)


def as_mermaid(layout: Layout) -> str:
    """Return a flowchart that GitHub draws."""
    roles = [f"{role.name}<br/>{ranks_in_words(role.ranks)}<br/>{_holds(role)}" for role in layout.roles]
    boxes = [f'  {_id(role.name)}["{text}"]' for role, text in zip(layout.roles, roles, strict=True)]
    lines = ["flowchart LR", *boxes]
    for message in layout.messages:
        label = f"{message.what}<br/>{message.how}, {message.times} x {size_in_words(message.num_bytes)}"
        lines.append(f'  {_id(message.source)} -->|"{label}"| {_id(message.target)}')
    return "\n".join(lines)


def as_svg(layout: Layout, title: str) -> str:
    """Return a picture: roles beside one another, an arrow for each message between them."""
    places = {role.name: 24 + k * (_WIDTH - 48 - _BOX_WIDTH) for k, role in enumerate(layout.roles)}
    if len(places) == 1:
        places = dict.fromkeys(places, (_WIDTH - _BOX_WIDTH) // 2)
    height = 60 + _BOX_HEIGHT + (len(layout.messages) + 1) * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:14px system-ui,sans-serif;fill:#222}.q{font-size:12px;fill:#555}"
        "rect{fill:#f5f8fb;stroke:#0072b2}path{stroke:#d55e00;fill:none;stroke-width:1.5}.h{fill:#d55e00;stroke:none}"
        "@media(prefers-color-scheme:dark){text{fill:#eee}.q{fill:#bbb}rect{fill:#1d2730}}</style>",
    ]
    for role in layout.roles:
        x = places[role.name]
        lines = [(role.name, ""), (ranks_in_words(role.ranks), "q"), (_holds(role), "q")]
        parts.append(f'<rect x="{x}" y="24" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>')
        parts += [
            f'<text x="{x + 14}" y="{52 + 24 * k}" class="{kind}">{escape(line)}</text>'
            for k, (line, kind) in enumerate(lines)
        ]
    for number, message in enumerate(layout.messages):
        parts.append(_arrow(places, message, 24 + _BOX_HEIGHT + (number + 1) * _GAP))
    return "\n".join([*parts, "</svg>\n"])


def _arrow(places: dict[str, int], message: Message, y: int) -> str:
    start = places[message.source] + _BOX_WIDTH // 2
    end = places[message.target] + _BOX_WIDTH // 2
    if start == end:  # among the ranks of one role
        start, end = start - 160, end + 160
    head = -10 if end > start else 10
    label = f"{message.what}: {message.how}, {message.times:,} times {size_in_words(message.num_bytes)}"
    return (
        f'<path d="M{start} {y}H{end}"/><path class="h" d="M{end} {y}l{head} -5v10z"/>'
        f'<text x="{(start + end) // 2}" y="{y - 8}" text-anchor="middle" class="q">{escape(label)}</text>'
    )


def ranks_in_words(ranks: tuple[int, ...]) -> str:
    """Return "rank 0", or "ranks 1 to 7"; of a role without ranks, what has it."""
    if not ranks:
        return "processes of their own, no ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    consecutive = ranks == tuple(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]} to {ranks[-1]}" if consecutive else f"ranks {', '.join(map(str, ranks))}"


def size_in_words(num_bytes: float) -> str:
    """Return a number of bytes with its unit."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def _holds(role: Role) -> str:
    held = [("environments", role.steps), ("policy", role.acts or role.learns), ("optimizer", role.learns)]
    names = [name for name, is_held in held if is_held]
    return f"holds {', '.join(names)}" if names else "holds environments"


def _said(message: Message) -> str:
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
