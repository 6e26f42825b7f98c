"""A copy stays where a prompt branches off, and neither branch writes into the other's pages."""

from __future__ import annotations

HISTORY = list(range(100))
FIRST = [*HISTORY, 1, 2, 3]


def _branched(make_core, **options):
    """Two sequences that share the page in which the older one's checkpoint lies."""
    core = make_core(entries=1, **options)
    answer = core.run(FIRST, boundary=100, max_tokens=60).answer
    second = FIRST + answer + [7] * 120
    core.run([*second, 1], boundary=len(second))
    (fork,) = [s for s in core.kept() if s.superseded_by is not None]
    (trunk,) = [s for s in core.kept() if s.superseded_by is None]
    assert fork.pages[:2] == trunk.pages[:2], "the precondition of this test"
    return core, second


def test_resuming_a_fork_inside_a_shared_page_leaves_the_other_branch_intact(make_core):
    core, second = _branched(make_core)
    core.run([*HISTORY, 4, 5, 6], boundary=100)
    assert core.run([*second, 9], boundary=len(second)).cached == len(second)
